"""States of the last tokens alone: the same as among all, whatever the order of norms and branches in a layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import resolve_checkpoint
from kernels.attention import AttentionBackend, AttentionMetadata, KVPages, LastRows, PagedLayer
from kernels.cpu.backend import NativeBackend, TorchBackend
from kernels.cpu.library import NativeLibrary
from models.decoder import Decoder
from models.residual import Residual
from models.spec import ModelSpec, NormPlace, Parallel

BLOCK_SIZE = 16
LENGTHS, COMPUTED = [40, 23, 30, 9], [0, 16, 29, 0]  # a prompt, one half read, a decode, a prompt that goes on later
WANTED = [1, 3, 1, 0]  # of the last tokens: three are a draw and two guesses
LAYERS = {
    "norms before branches": {},
    "norms before and after": {"norm_place": NormPlace.AROUND},
    "norms after branches": {"norm_place": NormPlace.AFTER},
    "parallel, two norms": {"parallel": Parallel.TWO_NORMS},
    "parallel, one norm": {"parallel": Parallel.ONE_NORM},
    "a window": {"window": 8},
}


def decoder(directory: Path, backend: AttentionBackend, changes: dict[str, object]) -> Decoder:
    """With random weights of their usual size."""
    changes = dict(changes)
    spec: ModelSpec = resolve_checkpoint(str(directory)).read_spec()
    window = changes.pop("window", None)
    if window is not None:
        changes["layers"] = tuple(replace(layer, window=window) for layer in spec.layers)
    model = Decoder(replace(spec, **changes), backend, dtype=torch.float32, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(3)
    parameters = model.parameters()
    for parameter in parameters.values():
        values = torch.randn(parameter.shape, generator=generator)
        parameter.view.copy_(values * parameter.shape[-1] ** -0.5 if values.dim() == 2 else 1 + 0.2 * values)
    for filled in {parameter.when_filled for parameter in parameters.values()} - {None}:
        filled()
    return model


class Step:
    """One step of all sequences, over pages of its own whose earlier tokens are random."""

    def __init__(self, spec: ModelSpec) -> None:
        counts = [length - done for length, done in zip(LENGTHS, COMPUTED, strict=True)]
        blocks = [-(-length // BLOCK_SIZE) for length in LENGTHS]
        table = torch.zeros(len(LENGTHS), max(blocks), dtype=torch.int32)
        first = 1
        for row, count in enumerate(blocks):
            table[row, :count] = torch.arange(first, first + count)
            first += count
        spans = [torch.arange(done, length) for done, length in zip(COMPUTED, LENGTHS, strict=True)]
        pages = [table[row, span // BLOCK_SIZE].long() for row, span in enumerate(spans)]
        slots = [page * BLOCK_SIZE + span % BLOCK_SIZE for page, span in zip(pages, spans, strict=True)]
        ends = torch.tensor([0, *counts]).cumsum(0)
        self.positions = torch.cat(spans)
        self.token_ids = torch.arange(len(self.positions)) * 7 % 250
        metadata = AttentionMetadata(
            ends.to(torch.int32),
            torch.tensor(LENGTHS, dtype=torch.int32),
            table,
            torch.cat(slots),
            max(counts),
            max(LENGTHS),
        )
        shape = (first, spec.num_kv_heads, BLOCK_SIZE, spec.head_dim)
        generator = torch.Generator().manual_seed(4)
        self.layers = [
            PagedLayer(
                KVPages(torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)), metadata
            )
            for _ in range(spec.num_layers)
        ]
        rows = [int(end) - wanted + i for end, wanted in zip(ends[1:], WANTED, strict=True) for i in range(wanted)]
        starts = torch.tensor([0, *WANTED]).cumsum(0).to(torch.int32)
        self.last = LastRows(torch.tensor(rows), starts, max(WANTED))

    @torch.inference_mode()
    def hidden(self, model: Decoder, last: LastRows | None = None) -> Residual:
        return model.hidden(self.token_ids, self.positions, self.layers, last=last)


@pytest.mark.parametrize("changes", LAYERS.values(), ids=LAYERS.keys())
@pytest.mark.parametrize("is_native", [True, False], ids=["native", "torch"])
def test_the_last_tokens_alone_have_the_states_they_have_among_all(
    tiny_llama_dir: Path, changes: dict[str, object], is_native: bool
) -> None:
    backend = NativeBackend(NativeLibrary()) if is_native else TorchBackend()
    model = decoder(tiny_llama_dir, backend, changes)
    whole, narrowed = Step(model.spec), Step(model.spec)
    with torch.inference_mode():
        expected = whole.hidden(model).rows(whole.last.rows).total()
        states = narrowed.hidden(model, narrowed.last).total()

    assert states.shape == (sum(WANTED), model.spec.hidden_size)
    torch.testing.assert_close(states, expected, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(narrowed.layers, whole.layers, strict=True):
        assert torch.equal(ours.pages.key, theirs.pages.key), "all tokens' keys are stored"
        assert torch.equal(ours.pages.value, theirs.pages.value)


def test_a_step_that_nobody_draws_from_stores_all_keys_and_gives_no_states(tiny_llama_dir: Path) -> None:
    model = decoder(tiny_llama_dir, NativeBackend(NativeLibrary()), {})
    whole, narrowed = Step(model.spec), Step(model.spec)
    nobody = LastRows(torch.empty(0, dtype=torch.int64), torch.zeros(5, dtype=torch.int32), 0)
    whole.hidden(model)
    with torch.inference_mode():
        assert narrowed.hidden(model, nobody).total().shape == (0, model.spec.hidden_size)
    for ours, theirs in zip(narrowed.layers, whole.layers, strict=True):
        assert torch.equal(ours.pages.key, theirs.pages.key)
