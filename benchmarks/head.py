"""What finding the most likely token costs on a CPU, where the head's weights lie in two planes of nibbles.

    python -m benchmarks.head
    python -m benchmarks.head path/to/model.gguf --batches 1,4 --write docs/cpu.md

Hidden states are those of a text (the language reference that comes with Python), so that the head is asked what it is
asked in service. Timed in turn, repeat by repeat: the largest output with `planes`, as served; with `bytes`, the same
weights one byte after the other; and the whole product, from which the largest is taken. *Read in full* is how many
panels of 16 tokens the upper nibbles do not rule out, counted by the rule of ``kernels/cpu/argmax.cpp`` in torch, and
the share of the head's bytes that a step of one token reads by that. Medians, and the least of all repeats in brackets.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch

from benchmarks.machine import Conditions
from benchmarks.section import write_section
from engine.config import resolve_checkpoint
from kernels.attention import AttentionMetadata, KVPages, PagedLayer
from kernels.cpu.backend import NativeBackend
from kernels.cpu.library import NativeLibrary
from kernels.cpu.quantised_matrix import (
    GROUP,
    PANEL_ROWS,
    Prologue,
    QuantisedMatrix,
    QuantisedProduct,
    WeightKind,
)
from models.loader import load_model
from models.weight_forms import Quantization, WeightForms
from server.text_parts import load_text_parts

CPU = torch.device("cpu")
NUM_TOKENS, NUM_COUNTED, BLOCK = 256, 32, 16
UNKNOWN = 7.5  # the most that a lower nibble is away from the middle


@dataclass(frozen=True)
class Asked:
    """What the head was asked in a step: ``x`` [NUM_TOKENS, hidden_size] before the norm."""

    product: QuantisedProduct
    x: torch.Tensor
    norm_weight: torch.Tensor
    eps: float

    def largest(self, product: QuantisedProduct, first: int, batch: int) -> torch.Tensor:
        return product.argmax(self.x[first : first + batch], Prologue.RMS_NORM, self.norm_weight, self.eps)

    def whole(self, first: int, batch: int) -> torch.Tensor:
        rows = self.x[first : first + batch]
        return self.product.multiply(rows, Prologue.RMS_NORM, self.norm_weight, self.eps).argmax(-1)


def ask(model_name: str | None) -> Asked:
    """Run a step of the model over a text, and listen to what its head is asked. ValueError for other heads."""
    checkpoint = resolve_checkpoint(model_name)
    spec = checkpoint.read_spec()
    backend = NativeBackend(NativeLibrary())
    forms = WeightForms(Quantization.STORED, backend.weight_kernels)
    model = load_model(checkpoint, spec, device=CPU, dtype=torch.float32, backend=backend, forms=forms)
    text = " ".join(topics[name] for name in sorted(topics))
    token_ids = load_text_parts(checkpoint, None).tokenizer.encode(text, add_special_tokens=False)[:NUM_TOKENS]
    asked: list[Asked] = []
    original = QuantisedProduct.argmax

    def listen(
        self: QuantisedProduct, x: torch.Tensor, prologue: Prologue, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        asked.append(Asked(self, x.clone(), weight, eps))
        return original(self, x, prologue, weight, eps)

    QuantisedProduct.argmax = listen  # type: ignore[assignment,method-assign]
    try:
        positions = torch.arange(NUM_TOKENS)
        table = torch.arange(1, NUM_TOKENS // BLOCK + 1, dtype=torch.int32)[None]
        metadata = AttentionMetadata(
            torch.tensor([0, NUM_TOKENS], dtype=torch.int32),
            torch.tensor([NUM_TOKENS], dtype=torch.int32),
            table,
            positions + BLOCK,
            NUM_TOKENS,
            NUM_TOKENS,
        )
        shape = (table.shape[1] + 1, spec.num_kv_heads, BLOCK, spec.head_dim)
        pages = [KVPages(torch.zeros(shape), torch.zeros(shape)) for _ in range(spec.num_layers)]
        with torch.inference_mode():
            layers = [PagedLayer(one, metadata) for one in pages]
            model.greedy(model.hidden(torch.tensor(token_ids), positions, layers))
    finally:
        QuantisedProduct.argmax = original  # type: ignore[method-assign]
    if not asked or [matrix.kind for matrix in asked[0].product.matrices] != [WeightKind.Q8_PLANES]:
        raise ValueError(f"the head of {checkpoint.name} is not in two planes of nibbles")
    return asked[0]


def in_bytes(matrix: QuantisedMatrix) -> QuantisedProduct:
    """A product with the same weights, but for rounding, in the layout of other matrices."""
    same = QuantisedMatrix(matrix.library, WeightKind.Q8_0, matrix.rows, matrix.columns)
    same.pack_floats(0, matrix.unpack(torch.arange(matrix.rows)), torch.get_num_threads())
    return QuantisedProduct([same])


def share_read_in_full(asked: Asked) -> tuple[float, float]:
    """The share of panels that one token's step needs whole, on average, and that of the head's bytes it reads."""
    (matrix,) = asked.product.matrices
    weights = matrix.unpack(torch.arange(matrix.rows)).view(matrix.rows, -1, GROUP)
    scales = weights.abs().amax(2, keepdim=True).clamp(min=1e-30) / 127
    codes = (weights / scales).round() + 128
    upper = ((codes.div(16, rounding_mode="floor") * 16 + UNKNOWN - 128) * scales).flatten(1)
    del codes
    x = asked.x[:: NUM_TOKENS // NUM_COUNTED]
    normed = x * (x.square().mean(-1, keepdim=True) + asked.eps).rsqrt() * asked.norm_weight
    groups = normed.view(len(x), -1, GROUP)
    units = groups.abs().amax(2, keepdim=True) / 127
    rounded = (groups / units).round()
    inputs = (rounded * units).flatten(1)
    outputs = inputs @ weights.flatten(1).T
    bounds = inputs @ upper.T + UNKNOWN * (units[..., 0] * rounded.abs().sum(2)) @ scales[..., 0].T
    full = matrix.rows // PANEL_ROWS * PANEL_ROWS
    largest = outputs[:, :full].reshape(len(x), -1, PANEL_ROWS).amax(2)
    seen = torch.cat([torch.full((len(x), 1), -torch.inf), largest.cummax(1).values[:, :-1]], 1)
    share = (bounds[:, :full].reshape(len(x), -1, PANEL_ROWS).amax(2) >= seen).double().mean().item()
    planes, scale_bytes = GROUP / 2, 2
    return share, (scale_bytes + planes * (1 + share)) / (scale_bytes + 2 * planes)


def measure(calls: Sequence[Callable[[int], object]], repeats: int) -> list[list[float]]:
    """Milliseconds of each repeat of each call, in turn; each repeat asks about other tokens."""
    taken: list[list[float]] = [[] for _ in calls]
    for repeat in range(repeats + 1):
        for call, own in zip(calls, taken, strict=True):
            started = time.perf_counter()
            call(repeat)
            own.append(1e3 * (time.perf_counter() - started))
    return [own[1:] for own in taken]


def render(asked: Asked, batches: Sequence[int], repeats: int) -> str:
    """The table."""
    bytes_ = in_bytes(asked.product.matrices[0])
    share, read = share_read_in_full(asked)
    lines = [
        f"{Conditions.now()}; {torch.get_num_threads()} threads, a head of {asked.product.rows:,} x "
        f"{asked.product.columns:,}",
        "",
        f"Read in full for one token: {share:.1%} of the panels, with which {read:.0%} of the bytes are read.",
        "",
        "| tokens in a step | planes, ms | bytes, ms | whole product and argmax, ms |",
        "|---:|---:|---:|---:|",
    ]
    for batch in batches:

        def place(repeat: int, batch: int = batch) -> int:
            return repeat * batch % (NUM_TOKENS - batch)

        calls = [
            lambda repeat, batch=batch: asked.largest(asked.product, place(repeat), batch),
            lambda repeat, batch=batch: asked.largest(bytes_, place(repeat), batch),
            lambda repeat, batch=batch: asked.whole(place(repeat), batch),
        ]
        cells = [f"{statistics.median(one):.2f} ({min(one):.2f})" for one in measure(calls, repeats)]
        lines.append(f"| {batch} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.head", description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", metavar="MODEL", help="as for octavo serve; default: the demo model")
    parser.add_argument("--batches", default="1,2,4,8,32")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers of FILE")
    parsed = parser.parse_args(arguments)
    try:
        text = render(ask(parsed.model), [int(batch) for batch in parsed.batches.split(",")], parsed.repeats)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(text)
    if parsed.write is not None:
        write_section(parsed.write, "head", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
