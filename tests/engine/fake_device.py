"""A device that is not there: its memory is the host's, and it tells on whoever does not treat it as another's.

Work runs at once, but what it yields is shown late: a copy to the host arrives when its event is waited for, and a copy
from the host must find its source unchanged until then. Graphs are recorded operation by operation, with the very
tensors they touched, and replay on these: a number that was baked in, a buffer that moved or was not filled anew, and a
host that waits while recording show as they would on a GPU. Where a step says that sequences share pages, it finds
those of all members of a group by the first one's table.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine.sampler import Sampler, uniform_draw
from engine.sampling_params import SamplingParams
from engine.step_buffers import DrawSections
from kernels.attention import AttentionBackend, AttentionMetadata, KVPages
from kernels.roofline import DataSheet

NOT_YET = -777


@dataclass
class FakeEvent:
    stream: FakeStream
    number: int
    target: torch.Tensor | None = None
    finish: Callable[[], None] | None = None
    check: Callable[[], bool] | None = None

    def wait(self) -> None:
        self.stream.run_until(self)

    def seconds_since(self, earlier: FakeEvent) -> float:
        assert self.stream.finished >= self.number > earlier.number, "an event that is not over has no time"
        return float(self.number - earlier.number)


class FakeStream:
    """Counts its copies; ``log`` says in which order steps were sent, and results waited for."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.numbers = itertools.count(1)
        self.open: list[FakeEvent] = []
        self.finished = 0
        self.uploads: list[int] = []
        self.log: list[str] = []
        self.pinned: set[int] = set()
        self.refuses_to_pin = False

    def pin(self, tensor: torch.Tensor) -> None:
        if self.refuses_to_pin:
            raise RuntimeError("CUDA error: out of memory\nand more lines")
        self.pinned.add(tensor.data_ptr())

    def host_buffer(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((size,), NOT_YET, dtype=dtype)

    def upload(self, source: torch.Tensor, target: torch.Tensor) -> FakeEvent:
        self._check_uploads()
        assert source.untyped_storage().data_ptr() != target.untyped_storage().data_ptr()
        for before in [one for one in self.open if one.target is not None and _overlap(one.target, source)]:
            self._finish_until(before)  # the queue keeps its order, whether the host has waited or not
        sent = source.clone()
        target.copy_(sent)
        self.uploads.append(source.nbytes)
        self.log.append("send")
        return self._add(FakeEvent(self, next(self.numbers), check=lambda: torch.equal(source, sent)))

    def download(self, source: torch.Tensor, target: torch.Tensor) -> FakeEvent:
        result = source.clone()
        return self._add(FakeEvent(self, next(self.numbers), target, lambda: target.copy_(result)))

    def record(self) -> FakeEvent:
        return self._add(FakeEvent(self, next(self.numbers)))

    def run_until(self, event: FakeEvent) -> None:
        self._check_uploads()
        if event.finish is not None and event in self.open:
            self.log.append("read")
        self._finish_until(event)

    @torch.inference_mode()
    def _finish_until(self, event: FakeEvent) -> None:
        for one in [one for one in self.open if one.number <= event.number]:
            self.open.remove(one)
            if one.finish is not None:
                one.finish()
        self.finished = max(self.finished, event.number)

    def _add(self, event: FakeEvent) -> FakeEvent:
        self.open.append(event)
        return event

    def _check_uploads(self) -> None:
        for one in self.open:
            assert one.check is None or one.check(), "a host buffer was written while its copy was under way"


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two contiguous tensors have memory in common."""
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + other.nbytes and second < first + one.nbytes


class Tape(TorchDispatchMode):
    """The operations that ran under it, to be run again on the same tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[[], object], list[torch.Tensor]]] = []
        self.is_muted = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        def call() -> object:
            return func(*args, **(kwargs or {}))

        if self.is_muted:
            return call()
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default):
            raise RuntimeError("operation not permitted when stream is capturing")
        result = call()
        given = {one.untyped_storage().data_ptr() for one in tree_leaves((args, kwargs)) if _has_storage(one)}
        made = [one for one in tree_leaves(result) if _has_storage(one)]
        is_new = all(one.untyped_storage().data_ptr() not in given for one in made)
        self.calls.append((call, made if is_new else []))  # views, and what was written in place, need no copy
        return result

    def opaque(self, call: Callable[[], object]) -> object:
        """A kernel: one operation, whatever it does inside."""
        self.is_muted = True
        try:
            result = call()
        finally:
            self.is_muted = False
        self.calls.append((call, [one for one in tree_leaves(result) if _has_storage(one)]))
        return result

    @torch.inference_mode()
    def replay(self) -> None:
        for call, made in self.calls:
            results = [one for one in tree_leaves(call()) if _has_storage(one)]
            for target, result in zip(made, results, strict=bool(made)):
                target.copy_(result)


def _has_storage(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


@dataclass
class FakeGraph:
    tape: Tape
    replays: int = 0

    def replay(self) -> None:
        self.replays += 1
        self.tape.replay()


@dataclass
class FakeMemory:
    """A device of ``size`` bytes. ``peaks`` are what each measured call takes, in order; the last goes on."""

    size: int = 1 << 30
    used: int = 0
    peaks: list[int] = field(default_factory=lambda: [0])

    def total(self) -> int:
        return self.size

    def in_use(self) -> int:
        return self.used

    def peak_of(self, call: Callable[[], None]) -> int:
        call()
        return self.peaks.pop(0) if len(self.peaks) > 1 else self.peaks[0]


class FakeDevice:
    """All of it: the stream, the recorder of graphs, the sampler; `backend` makes a kernel of what attends."""

    def __init__(self) -> None:
        self.stream = FakeStream()
        self.memory = FakeMemory()
        self.graphs: list[FakeGraph] = []
        self.fails_after: int | None = None  # graphs
        self.sheet: DataSheet | None = None
        self.shared: list[list[tuple[int, ...]]] = []  # members of each group, by launch
        self._tape: Tape | None = None

    def record(self, step: Callable[[], None]) -> FakeGraph:
        if self.fails_after == len(self.graphs):
            raise RuntimeError("operation not permitted when stream is capturing\nand more lines")
        step()
        self._tape = Tape()
        try:
            with self._tape:
                step()
            self.graphs.append(FakeGraph(self._tape))
        finally:
            self._tape = None
        return self.graphs[-1]

    @property
    def num_replays(self) -> int:
        return sum(graph.replays for graph in self.graphs)

    def kernel(self, call: Callable[[], object]) -> object:
        return call() if self._tape is None else self._tape.opaque(call)

    def sample(self, logits: torch.Tensor, draws: DrawSections[torch.Tensor]) -> torch.Tensor:
        """The host's own sampler, on what the step carries."""

        def call() -> torch.Tensor:
            filters = (draws.temperature, draws.top_k, draws.top_p, draws.min_p)
            params = [
                SamplingParams(max_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
                for temperature, top_k, top_p, min_p in zip(*(one.tolist() for one in filters), strict=True)
            ]
            numbers = [
                uniform_draw(seed, index)
                for seed, index in zip(draws.seed.tolist(), draws.output_index.tolist(), strict=True)
            ]
            return torch.tensor(Sampler().sample(logits, params, numbers), dtype=torch.int64)

        return self.kernel(call)

    def backend(self, inner: AttentionBackend) -> AttentionBackend:
        return _Kernels(inner, self)


class _Kernels:
    layer_replay = None
    weight_kernels = None  # products of kept weights are no operations of torch, and would not be recorded

    def __init__(self, inner: AttentionBackend, device: FakeDevice) -> None:
        self._inner = inner
        self._device = device

    def __getattr__(self, name: str) -> object:
        member = getattr(self._inner, name)
        if not callable(member):
            return member
        return lambda *args, **kwargs: self._device.kernel(lambda: member(*args, **kwargs))

    def attend(
        self, query: torch.Tensor, pages: KVPages, metadata: AttentionMetadata, **settings: object
    ) -> torch.Tensor:
        """Null sequences, which come last, get zeros, as rows do here that no sequence owns."""

        def call() -> torch.Tensor:
            real = int((metadata.seq_lens > 0).sum())
            assert metadata.seq_lens[real:].sum() == 0
            assert metadata.slot_mapping[metadata.query_start_loc[real] :].eq(-1).all()
            assert metadata.seq_lens.max() <= metadata.max_seq_len
            assert metadata.query_start_loc.diff().max() <= metadata.max_query_len
            table = metadata.block_table[:real]
            if metadata.shared_prefix is not None and real:
                assert settings.get("window") is None
                table = self._read_once(table.clone(), metadata, pages.key.shape[2])
            shown = replace(
                metadata,
                query_start_loc=metadata.query_start_loc[: real + 1],
                seq_lens=metadata.seq_lens[:real],
                block_table=table,
                shared_prefix=None,
            )
            return self._inner.attend(query, pages, shown, **settings)

        return self._device.kernel(call)

    def _read_once(self, table: torch.Tensor, metadata: AttentionMetadata, block_size: int) -> torch.Tensor:
        """The table by which a member of a group finds the pages of its prefix: that of the first member."""
        prefix = metadata.shared_prefix
        assert prefix is not None
        starts, lens = prefix.group_starts.tolist(), prefix.prefix_lens.tolist()
        groups = [prefix.members[start:end].tolist() for start, end in itertools.pairwise(starts)]
        members = [member for group in groups for member in group]
        assert len(members) == len(set(members)) == starts[-1] == len(prefix.members)
        assert [row for row, length in enumerate(lens) if length] == sorted(members)
        assert prefix.largest_group == max(map(len, groups))
        assert prefix.max_prefix_len == max(lens)
        own = metadata.seq_lens - prefix.prefix_lens
        is_decode = metadata.query_start_loc.diff() == 1
        assert prefix.max_own_len == own[is_decode].max()
        for group in groups:
            (length,) = {lens[member] for member in group}
            assert length % block_size == 0
            assert own[group].min() > 0
            assert is_decode[group].all()
            table[group, : length // block_size] = table[group[0], : length // block_size].clone()
        self._device.shared.append([tuple(sorted(group)) for group in groups])
        return table
