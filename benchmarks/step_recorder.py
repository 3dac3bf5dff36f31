"""Where the time of an engine's step goes: each moment counts for one part, the innermost that is under way.

Wraps methods of the classes that a step goes through, for as long as it is asked to, and knows nothing of what they
compute. Invariants: the parts of a step add up to its wall time; afterwards the classes are as they were. Only for
steps that run on the calling thread.
"""

from __future__ import annotations

import enum
import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from engine.input_batch import InputBatch
from engine.paged_model import PagedModel
from engine.sampler import Sampler
from kernels.cpu.backend import NativeBackend, TorchBackend
from kernels.cpu.layer_replay import LayerReplay
from models.embedding import Embedding
from models.linear import Linear
from models.matrix_product import MatrixProduct
from models.rotary import Rotary
from scheduler.scheduler import Scheduler


class Part(enum.StrEnum):
    """In the order of a step."""

    SCHEDULER = "scheduler"
    INPUTS = "inputs (tables, tensors)"
    EMBEDDING = "embedding"
    QKV = "query, key and value product"
    ROWS = "norms, rotary, activations, storing"
    ATTENTION = "attention"
    OUTPUT = "output product"
    MLP = "MLP products"
    HEAD = "head"
    SAMPLING = "sampling"
    MODEL = "model, between calls"
    MESSAGE = "message to the server"
    ENGINE = "engine loop, runner"


PRODUCTS = frozenset({Part.QKV, Part.OUTPUT, Part.MLP, Part.HEAD})
_PART_OF_PROJECTION = {"q_proj": Part.QKV, "o_proj": Part.OUTPUT, "gate_proj": Part.MLP, "down_proj": Part.MLP}
_CALLS: tuple[tuple[type, str, Part], ...] = (
    (Scheduler, "schedule", Part.SCHEDULER),
    (Scheduler, "update", Part.SCHEDULER),
    (InputBatch, "prepare", Part.INPUTS),
    (Embedding, "__call__", Part.EMBEDDING),
    (Rotary, "__call__", Part.ROWS),
    (Sampler, "sample", Part.SAMPLING),
    (PagedModel, "drawing", Part.MODEL),
    (PagedModel, "logits", Part.MODEL),
    (PagedModel, "greedy", Part.MODEL),
)
_PART_OF_KERNEL = {"attend": Part.ATTENTION}
_NOT_CALLS = frozenset({"keep", "pack", "parameters"})  # of products: what happens while they load


class StepRecorder:
    """Seconds of each part, step after step; ``weight_bytes`` by part, of the products that were called."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.steps: list[dict[Part, float]] = []
        self._products: dict[Part, dict[int, int]] = defaultdict(dict)
        self._clock = clock
        self._under_way: list[Part] = []
        self._since = 0.0
        self._seconds: dict[Part, float] = defaultdict(float)

    @property
    def weight_bytes(self) -> dict[Part, int]:
        return {part: sum(sizes.values()) for part, sizes in self._products.items()}

    @contextmanager
    def step(self) -> Iterator[None]:
        """Record one step, from here to the end of the context."""
        self._seconds = defaultdict(float)
        with self.part(Part.ENGINE):
            yield
        self.steps.append(dict(self._seconds))

    @contextmanager
    def part(self, part: Part) -> Iterator[None]:
        """Time in here is ``part``'s, but for parts inside it."""
        self._enter(part)
        try:
            yield
        finally:
            self._leave()

    def _enter(self, part: Part) -> None:
        now = self._clock()
        if self._under_way:
            self._seconds[self._under_way[-1]] += now - self._since
        self._under_way.append(part)
        self._since = now

    def _leave(self) -> None:
        now = self._clock()
        self._seconds[self._under_way.pop()] += now - self._since
        self._since = now

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Wrap the classes of a step until the context ends."""
        originals: list[tuple[type, str, Any]] = []

        def wrap(owner: type, name: str, part_of: Callable[[Any], Part]) -> None:
            originals.append((owner, name, owner.__dict__[name]))
            setattr(owner, name, self._timed(owner.__dict__[name], part_of))

        try:
            originals.append((LayerReplay, "__call__", LayerReplay.__call__))
            LayerReplay.__call__ = _compute_layers  # type: ignore[assignment,method-assign]  # or else no part of them is seen
            for owner, name, part in _CALLS:
                wrap(owner, name, functools.partial(_always, part))
            for backend in (NativeBackend, TorchBackend):
                for name in _public_calls(backend):
                    wrap(backend, name, functools.partial(_always, _PART_OF_KERNEL.get(name, Part.ROWS)))
            for name in _public_calls(Linear):
                wrap(Linear, name, self._part_of_linear)
            for name in _public_calls(MatrixProduct):
                wrap(MatrixProduct, name, self._part_of_product)
            yield
        finally:
            for owner, name, original in reversed(originals):
                setattr(owner, name, original)

    def _timed(self, method: Callable[..., Any], part_of: Callable[[Any], Part]) -> Callable[..., Any]:
        @functools.wraps(method)
        def timed(instance: Any, *args: Any, **named: Any) -> Any:
            self._enter(part_of(instance))
            try:
                return method(instance, *args, **named)
            finally:
                self._leave()

        return timed

    def _part_of_linear(self, linear: Linear) -> Part:
        part = _PART_OF_PROJECTION.get(next(iter(linear._outputs)), Part.HEAD)
        self._products[part][id(linear)] = linear.nbytes
        return part

    def _part_of_product(self, product: MatrixProduct) -> Part:
        """Of a product outside a `Linear`: the head of a tied table."""
        if self._under_way and self._under_way[-1] in PRODUCTS:
            return self._under_way[-1]
        self._products[Part.HEAD][id(product)] = product.nbytes
        return Part.HEAD


def _compute_layers(replay: LayerReplay, compute: Callable[..., Any], *inputs: Any) -> Any:
    return compute(*inputs)


def _always(part: Part, instance: object) -> Part:
    return part


def _public_calls(owner: type) -> list[str]:
    """Names of methods that compute: public ones, and calling the instance."""
    return [
        name
        for name, value in vars(owner).items()
        if callable(value) and (name == "__call__" or not name.startswith("_")) and name not in _NOT_CALLS
    ]
