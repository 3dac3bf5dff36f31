"""Layers replayed as native calls: the same bits as by their code, and never where torch computes something."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from kernels.attention import AttentionMetadata, KVPages, PagedLayer, Preparation
from kernels.cpu.backend import NativeBackend
from kernels.cpu.layer_replay import MAX_TOKENS
from kernels.cpu.library import NativeLibrary
from kernels.cpu.quantised_matrix import Prologue, QuantisedMatrix, QuantisedProduct, WeightKind

ROOT = Path(__file__).parents[3]
HIDDEN, HEADS, DIM, BLOCK, NUM_LAYERS, NUM_PAGES = 64, 2, 32, 16, 2, 40
Rotations = Sequence[tuple[torch.Tensor, torch.Tensor]]
After = Callable[[torch.Tensor], torch.Tensor]


class Stack:
    """Two layers as models make them: product of the norm, store, attend, product, normed sum. One has sinks."""

    def __init__(self, backend: NativeBackend, seed: int, after: After = lambda x: x) -> None:
        self.backend = backend
        self.num_computed = 0
        generator = torch.Generator().manual_seed(seed)
        self.norm = torch.rand(HIDDEN, generator=generator)
        self.sinks = (None, torch.randn(HEADS, generator=generator))

        def product(rows: int, columns: int) -> QuantisedProduct:
            matrix = QuantisedMatrix(backend.library, WeightKind.Q8_0, rows, columns)
            matrix.pack_floats(0, torch.randn(rows, columns, generator=generator))
            return QuantisedProduct([matrix])

        self.layers = [(product(3 * HEADS * DIM, HIDDEN), product(HIDDEN, HEADS * DIM)) for _ in range(NUM_LAYERS)]
        self.after = after
        self.layers_of_step = self.compute  # one object, as a model has

    def compute(self, x: torch.Tensor, rotations: Rotations, layers: Sequence[PagedLayer]) -> torch.Tensor:
        self.num_computed += 1
        stacked = zip(self.layers, rotations, self.sinks, layers, strict=True)
        for (into, out), rotation, sinks, paged in stacked:
            heads = into.multiply(x, Prologue.RMS_NORM, self.norm, 1e-6).view(len(x), -1, DIM)
            query, key, value = torch.split(heads, [HEADS] * 3, dim=1)
            preparation = Preparation(None, None, 1e-6, rotation)
            self.backend.prepare_and_store(query, key, value, paged.pages, paged.metadata.slot_mapping, preparation)
            attended = self.backend.attend(query, paged.pages, paged.metadata, scale=0.2, sinks=sinks)
            x = self.after(self.backend.add_normed(x, out.multiply(attended.flatten(1)), self.norm, 1e-6))
        return x


class Run:
    """Steps of ``num_seqs`` sequences over pages of their own."""

    def __init__(self, stack: Stack, num_seqs: int, *, replays: bool) -> None:
        self.stack, self.replays = stack, replays
        shape = (NUM_PAGES, HEADS, BLOCK, DIM)
        self.pages = [KVPages(torch.zeros(shape), torch.zeros(shape)) for _ in range(NUM_LAYERS)]
        order = torch.randperm(NUM_PAGES - 1, generator=torch.Generator().manual_seed(3)).int() + 1
        self.table = order[: num_seqs * 8].view(num_seqs, 8)
        self.lens = [0] * num_seqs
        self.generator = torch.Generator().manual_seed(4)

    def step(self, counts: list[int]) -> torch.Tensor:
        starts, self.lens = self.lens, [length + count for length, count in zip(self.lens, counts, strict=True)]
        positions = torch.cat([torch.arange(start, end) for start, end in zip(starts, self.lens, strict=True)])
        rows = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        metadata = AttentionMetadata(
            torch.tensor([0, *counts]).cumsum(0).int(),
            torch.tensor(self.lens, dtype=torch.int32),
            self.table[:, : -(-max(self.lens) // BLOCK)].contiguous(),
            self.table[rows, positions // BLOCK].long() * BLOCK + positions % BLOCK,
            max(counts),
            max(self.lens),
        )
        x = torch.randn(len(positions), HIDDEN, generator=self.generator)
        angles = positions[:, None].float() * torch.rand(DIM // 2, generator=self.generator)
        some = angles[:, : DIM // 8].contiguous()
        rotations = [(angles.cos(), angles.sin()), (some.cos(), some.sin())]
        layers = [PagedLayer(pages, metadata) for pages in self.pages]
        replay = self.stack.backend.layer_replay
        assert replay is not None
        with torch.inference_mode():
            if self.replays:
                return replay(self.stack.layers_of_step, x, rotations, layers).clone()
            return self.stack.compute(x, rotations, layers)


@pytest.fixture
def backend() -> NativeBackend:
    return NativeBackend(NativeLibrary())


STEPS = [[5, 9], [1, 1], [1, 1], [3, 1], [1, 1], [16, 2], [1, 1], [3, 1], [1, 3], [1, 1]]


def test_replayed_steps_have_the_bits_of_computed_ones(backend: NativeBackend) -> None:
    stack = Stack(backend, 0)
    computed, replayed = Run(stack, 2, replays=False), Run(stack, 2, replays=True)
    for counts in STEPS:
        assert torch.equal(replayed.step(counts), computed.step(counts)), counts
    for mine, expected in zip(replayed.pages, computed.pages, strict=True):
        assert torch.equal(mine.key, expected.key)
        assert torch.equal(mine.value, expected.value)


def test_a_step_of_a_size_is_computed_once_and_larger_ones_always(backend: NativeBackend) -> None:
    stack = Stack(backend, 0)
    run = Run(stack, 2, replays=True)
    for _ in range(5):
        run.step([1, 1])
    assert stack.num_computed == 1
    for _ in range(3):
        run.step([MAX_TOKENS, 1])
    assert stack.num_computed == 4


@pytest.mark.parametrize(
    "after",
    [
        lambda x: x + 1,
        lambda x: x.mul_(2),
        lambda x: x.clone(),
        lambda x: x.repeat(1, 2)[:, :HIDDEN].contiguous(),
        lambda x: x * x.flatten()[0].item(),
    ],
    ids=["sum", "in place", "copy", "layout", "number"],
)
def test_layers_in_which_torch_computes_are_never_replayed(backend: NativeBackend, after: After) -> None:
    stack = Stack(backend, 0, after)
    computed, replayed = Run(stack, 1, replays=False), Run(stack, 1, replays=True)
    for _ in range(4):
        assert torch.equal(replayed.step([1]), computed.step([1]))
    assert stack.num_computed == 8


def test_two_models_and_two_sets_of_pages_are_told_apart(backend: NativeBackend) -> None:
    stacks = [Stack(backend, seed) for seed in (1, 2)]
    runs = [(Run(stack, 1, replays=False), Run(stack, 1, replays=True)) for stack in (*stacks, *stacks)]
    for _ in range(3):
        for computed, replayed in runs:
            assert torch.equal(replayed.step([1]), computed.step([1]))


def test_a_replay_refuses_what_a_call_refuses(backend: NativeBackend) -> None:
    run = Run(Stack(backend, 0), 1, replays=True)
    run.step([1])
    run.table[:] = NUM_PAGES
    with pytest.raises(ValueError, match="slot_mapping"):
        run.step([1])


def test_noting_a_step_imports_no_compiler() -> None:
    """Torch's, which a mode of operations imports unless it says otherwise: seconds of the first request."""
    program = (
        "import sys, torch; from kernels.cpu.layer_replay import _Calls\n"
        "with _Calls(None): torch.zeros(2, 3).view(6)\n"
        "print([name for name in sys.modules if name in ('torch._dynamo', 'sympy')])"
    )
    finished = subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert finished.stdout.strip() == "[]"
