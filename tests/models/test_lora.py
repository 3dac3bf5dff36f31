"""Adapters on tiny models: the logits of a model with W + scale B A, whoever else is in the step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.backends import choose_backend
from models.checkpoint import resolve_checkpoint
from models.decoder import Decoder
from models.loader import load_model
from models.lora import LoraAdapter, LoraDeltas, LoraRows, LoraWeights
from models.lora_file import read_adapter
from models.registry import family_of
from models.spec import Parallel
from models.weight_forms import Quantization, WeightForms
from tests.lora_adapters import ATTENTION, MLP, merged_model, write_adapter

CPU = torch.device("cpu")
PROMPTS = [[256, *range(40, 70)], [256, *range(90, 140)], [256, 12, 13, 14], [256, *range(60, 99)]]
LogitsOf = Callable[..., list[torch.Tensor]]

pytestmark = pytest.mark.usefixtures("single_thread")


def load(directory: Path, dtype: torch.dtype = torch.float32, quantization: Quantization | None = None) -> Decoder:
    checkpoint = resolve_checkpoint(str(directory))
    backend, _ = choose_backend(CPU)
    forms = None
    if quantization is not None:
        if backend.weight_kernels is None:
            pytest.skip("needs the native library")
        forms = WeightForms(quantization, backend.weight_kernels)
    model = load_model(checkpoint, checkpoint.read_spec(), device=CPU, dtype=dtype, backend=backend, forms=forms)
    assert isinstance(model, Decoder)
    return model


def add(model: Decoder, number: int, directory: Path) -> None:
    names = family_of(model.spec).names
    model.add_adapter(number, read_adapter(directory, model.spec, names, model.projections(), max_rank=64))


class WithAdapters:
    """A model whose prompts use adapters: prompt ``i`` of ``prompts`` the one of number ``numbers[i]``, 0 for none."""

    def __init__(self, model: Decoder, numbers: list[int], prompts: list[list[int]] = PROMPTS) -> None:
        self.spec = model.spec
        self._model = model
        self._of_token = {tuple(prompt): number for prompt, number in zip(prompts, numbers, strict=True)}
        self._prompts = prompts

    def forward(self, token_ids, positions, layers, logits_rows) -> torch.Tensor:
        starts = layers[0].metadata.query_start_loc.tolist()
        rows: dict[int, list[int]] = {}
        for start, end in itertools.pairwise(starts):
            chunk, position = token_ids[start:end].tolist(), int(positions[start])
            [prompt] = [one for one in self._prompts if one[position : position + len(chunk)] == chunk]
            if number := self._of_token[tuple(prompt)]:
                rows.setdefault(number, []).extend(range(start, end))
        parts = [(number, torch.tensor(own)) for number, own in rows.items()]
        adapters = LoraRows(parts) if parts else None
        return self._model.logits(self._model.hidden(token_ids, positions, layers, adapters).rows(logits_rows))


ALL_ROWS = [list(range(len(prompt))) for prompt in PROMPTS]


@pytest.mark.parametrize("directory", ["tiny_llama_dir", "tiny_gemma3_dir"])
@pytest.mark.parametrize("chunk", [100, 7])
def test_each_prompt_of_a_mixed_step_has_the_logits_of_its_merged_model(
    request, tmp_path: Path, paged_logits: LogitsOf, directory: str, chunk: int
) -> None:
    base = request.getfixturevalue(directory)
    model = load(base)
    adapters = {number: write_adapter(tmp_path / str(number), base, seed=number) for number in (1, 2)}
    for number, adapter in adapters.items():
        add(model, number, adapter)
    numbers = [1, 0, 2, 1]
    mixed = paged_logits(WithAdapters(model, numbers), PROMPTS, ALL_ROWS, chunk=chunk, dtype=torch.float32)
    oracles = {0: load(base)} | {
        number: load(merged_model(tmp_path / f"merged-{number}", base, adapter)) for number, adapter in adapters.items()
    }
    for prompt, rows, number, logits in zip(PROMPTS, ALL_ROWS, numbers, mixed, strict=True):
        [expected] = paged_logits(oracles[number], [prompt], [rows], chunk=100, dtype=torch.float32)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
        if number:
            [plain] = paged_logits(oracles[0], [prompt], [rows], chunk=100, dtype=torch.float32)
            assert (logits - plain).abs().max() > 0.5
            assert torch.equal(logits.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quantization", [None, Quantization.INT8])
def test_a_row_has_the_same_bits_whoever_is_in_its_step(
    tiny_llama_dir: Path, tmp_path: Path, paged_logits: LogitsOf, dtype: torch.dtype, quantization: Quantization | None
) -> None:
    if quantization is not None and dtype is torch.bfloat16:
        pytest.skip("quantised weights are multiplied in float32")
    model = load(tiny_llama_dir, dtype, quantization)
    for number in (1, 2):
        add(model, number, write_adapter(tmp_path / str(number), tiny_llama_dir, seed=number))
    numbers = [1, 0, 2, 1]
    mixed = paged_logits(WithAdapters(model, numbers), PROMPTS, ALL_ROWS, chunk=100, dtype=dtype)
    for prompt, rows, number, logits in zip(PROMPTS, ALL_ROWS, numbers, mixed, strict=True):
        alone = WithAdapters(model, [number], [prompt])
        [expected] = paged_logits(alone, [prompt], [rows], chunk=100, dtype=dtype)
        assert torch.equal(logits, expected)
        if number == 0:
            [plain] = paged_logits(model, [prompt], [rows], chunk=100, dtype=dtype)
            assert torch.equal(logits, plain)


def test_quantised_and_16_bit_weights_take_adapters_of_floats(
    tiny_llama_dir: Path, tmp_path: Path, paged_logits: LogitsOf
) -> None:
    """The error is that of the base's form: without an adapter it is as large."""
    adapter = write_adapter(tmp_path / "a", tiny_llama_dir, seed=1, dtype=torch.float16)
    merged = load(merged_model(tmp_path / "merged", tiny_llama_dir, adapter))
    for dtype, quantization in ((torch.bfloat16, None), (torch.float32, Quantization.INT8)):
        model = load(tiny_llama_dir, dtype, quantization)
        add(model, 1, adapter)
        with_adapter = WithAdapters(model, [1], PROMPTS[:1])
        [logits] = paged_logits(with_adapter, PROMPTS[:1], ALL_ROWS[:1], chunk=100, dtype=torch.float32)
        [expected] = paged_logits(merged, PROMPTS[:1], ALL_ROWS[:1], chunk=100, dtype=torch.float32)
        similarity = torch.cosine_similarity(logits, expected, dim=-1)
        assert similarity.min() > 0.995


@pytest.mark.parametrize(
    ("config", "ranks", "scales"),
    [
        ({"lora_alpha": 10}, {}, {"": 2.5}),
        ({"lora_alpha": 6, "use_rslora": True}, {}, {"": 3.0}),
        ({"lora_alpha": 4}, {"q_proj": 2, "1.mlp.up_proj": 8}, {"q_proj": 2.0, "1.mlp.up_proj": 0.5, "": 1.0}),
        (
            {"lora_alpha": 4, "alpha_pattern": {"layers\\.0\\.self_attn\\.[kv]_proj": 12, "v_proj": 2}},
            {},
            {"0.self_attn.k_proj": 3.0, "0.self_attn.v_proj": 3.0, "v_proj": 0.5, "": 1.0},
        ),
    ],
    ids=["alpha", "rank-stabilised", "ranks", "alphas"],
)
def test_the_scale_follows_ranks_and_alphas(
    tiny_llama_dir: Path,
    tmp_path: Path,
    paged_logits: LogitsOf,
    config: dict[str, object],
    ranks: dict[str, int],
    scales: dict[str, float],
) -> None:
    adapter = write_adapter(tmp_path / "a", tiny_llama_dir, seed=3, ranks=ranks, **config)
    model = load(tiny_llama_dir)
    add(model, 1, adapter)
    merged = load(merged_model(tmp_path / "merged", tiny_llama_dir, adapter, scales))
    [logits] = paged_logits(
        WithAdapters(model, [1], PROMPTS[:1]), PROMPTS[:1], ALL_ROWS[:1], chunk=100, dtype=torch.float32
    )
    [expected] = paged_logits(merged, PROMPTS[:1], ALL_ROWS[:1], chunk=100, dtype=torch.float32)
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("targets", [ATTENTION[:1], ATTENTION[1:3], MLP[1:2], ("layers.1.mlp.down_proj",)])
def test_an_adapter_may_change_a_part_of_the_projections(
    tiny_llama_dir: Path, tmp_path: Path, paged_logits: LogitsOf, targets: tuple[str, ...]
) -> None:
    adapter = write_adapter(tmp_path / "a", tiny_llama_dir, seed=4, targets=targets)
    model = load(tiny_llama_dir)
    add(model, 1, adapter)
    merged = load(merged_model(tmp_path / "merged", tiny_llama_dir, adapter))
    [logits] = paged_logits(
        WithAdapters(model, [1], PROMPTS[:1]), PROMPTS[:1], ALL_ROWS[:1], chunk=100, dtype=torch.float32
    )
    [expected] = paged_logits(merged, PROMPTS[:1], ALL_ROWS[:1], chunk=100, dtype=torch.float32)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_a_removed_adapter_changes_nothing_any_more(
    tiny_llama_dir: Path, tmp_path: Path, paged_logits: LogitsOf
) -> None:
    model = load(tiny_llama_dir)
    add(model, 1, write_adapter(tmp_path / "a", tiny_llama_dir, seed=5))
    model.remove_adapter(1)
    model.remove_adapter(2)
    [logits] = paged_logits(
        WithAdapters(model, [1], PROMPTS[:1]), PROMPTS[:1], ALL_ROWS[:1], chunk=100, dtype=torch.float32
    )
    [plain] = paged_logits(model, PROMPTS[:1], ALL_ROWS[:1], chunk=100, dtype=torch.float32)
    assert torch.equal(logits, plain)


def test_a_lone_row_has_the_bits_that_it_has_among_others() -> None:
    generator = torch.Generator().manual_seed(6)
    columns = 2048  # where a product of one row adds up in another order than one of more
    a, b, x = (torch.randn(*shape, generator=generator) for shape in ((8, columns), (64, 8), (40, columns)))
    deltas = LoraDeltas(None)
    deltas.add(1, [(0, LoraWeights(a, b))])
    together, alone = torch.zeros(40, 64), torch.zeros(40, 64)
    deltas.add_to(together, 1, slice(0, 40), x)
    for row in range(40):
        deltas.add_to(alone, 1, slice(row, row + 1), x[row : row + 1])
    assert torch.equal(alone, together)
    torch.testing.assert_close(together, x @ a.T @ b.T, atol=1e-2, rtol=1e-4)


@pytest.mark.parametrize("parallel", list(Parallel))
@pytest.mark.parametrize("gated", [True, False])
def test_every_layout_of_a_layer_takes_adapters(
    tiny_llama_dir: Path, paged_logits: LogitsOf, parallel: Parallel, gated: bool
) -> None:
    spec = resolve_checkpoint(str(tiny_llama_dir)).read_spec()
    spec = replace(spec, parallel=parallel, gated_mlp=gated, activation="silu" if gated else "gelu_tanh")
    backend, _ = choose_backend(CPU)
    generator = torch.Generator().manual_seed(8)
    plain, merged = (Decoder(spec, backend, dtype=torch.float32, device=CPU) for _ in range(2))
    adapted = {
        name: LoraWeights(
            torch.randn(4, place.columns, generator=generator) * place.columns**-0.5,
            torch.randn(place.outputs, 4, generator=generator) * 0.5,
        )
        for name, place in plain.projections().items()
    }
    values = {
        name: torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5
        for name, parameter in plain.parameters().items()
    }
    for model in (plain, merged):
        parameters = model.parameters()
        for name, parameter in parameters.items():
            weights = adapted.get(name.removesuffix(".weight")) if model is merged else None
            parameter.view.copy_(values[name] if weights is None else values[name] + weights.b @ weights.a)
        for when_filled in {parameter.when_filled for parameter in parameters.values()} - {None}:
            when_filled()
    plain.add_adapter(1, LoraAdapter(adapted, "digest"))
    prompts, rows = PROMPTS[:1], ALL_ROWS[:1]
    [logits] = paged_logits(WithAdapters(plain, [1], prompts), prompts, rows, chunk=100, dtype=torch.float32)
    [expected] = paged_logits(merged, prompts, rows, chunk=100, dtype=torch.float32)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
