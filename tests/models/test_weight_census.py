"""Parameters are counted by the shapes of what is stored, whatever form they are stored in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from models.checkpoint import resolve_checkpoint
from models.spec import ExpertsSpec, ModelSpec
from models.weight_census import StoredTensor, WeightCensus


@pytest.fixture
def spec(tiny_llama_dir: Path) -> ModelSpec:
    return resolve_checkpoint(str(tiny_llama_dir)).read_spec()


def stored(name: str, form: str, *shape: int, size: int) -> StoredTensor:
    num_bytes = size
    for one in shape:
        num_bytes *= one
    return StoredTensor(name, form, shape, num_bytes)


def test_experts_that_a_token_does_not_go_to_are_not_active(spec: ModelSpec) -> None:
    sparse = replace(spec, experts=ExpertsSpec(8, 2, 16, is_normalised=True))
    tensors = [
        stored("model.embed_tokens.weight", "BF16", 10, 4, size=2),
        stored("model.layers.0.mlp.gate.weight", "BF16", 8, 4, size=2),
        *(stored(f"model.layers.0.mlp.experts.{number}.up_proj.weight", "BF16", 16, 4, size=2) for number in range(8)),
        stored("blk.0.ffn_down_exps.weight", "BF16", 8, 4, 16, size=2),
    ]
    census = WeightCensus.of(tensors, sparse)
    assert (census.parameters, census.active) == (72 + 16 * 64, 72 + 4 * 64)


def test_codes_packed_into_integers_are_the_parameters_and_scales_are_none(spec: ModelSpec) -> None:
    prefix = "model.layers.0.mlp.up_proj"
    gptq = [
        stored(f"{prefix}.qweight", "I32", 64 // 8, 128, size=4),
        stored(f"{prefix}.qzeros", "I32", 2, 16, size=4),
        stored(f"{prefix}.scales", "F16", 2, 128, size=2),
        stored(f"{prefix}.g_idx", "I32", 64, size=4),
    ]
    census = WeightCensus.of(gptq, spec, 4)
    assert census.parameters == 64 * 128
    assert census.num_bytes == 4096 + 128 + 512 + 256
    assert census.bytes_by_form == {"I32": 4096 + 128 + 256, "F16": 512}
    assert WeightCensus.of([stored(f"{prefix}.weight_packed", "I32", 64, 32, size=4)], spec, 8).parameters == 64 * 128
    assert WeightCensus.of([stored(f"{prefix}.weight", "F8_E4M3", 64, 128, size=1)], spec).parameters == 64 * 128


def test_what_is_not_used_is_not_counted(spec: ModelSpec) -> None:
    head = stored("lm_head.weight", "F32", 10, 4, size=4)
    frequencies = stored("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 8, size=4)
    assert WeightCensus.of([head, frequencies], spec).parameters == 40
    assert WeightCensus.of([head], replace(spec, tied_embeddings=True)).num_bytes == 0
