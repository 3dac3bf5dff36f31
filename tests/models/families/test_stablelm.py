"""Published configs of StableLM become exact specs; a GGUF file holds the norms of all heads together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.registry import spec_from_config
from models.spec import LayerSpec, NormKind, Parallel, QKNorm, RopeSpec
from tests.models.families.cases.stablelm import NORMED_HEADS
from tests.models.families.gguf_writer import GGUFForm, write_gguf

STABLELM_2_1_6B: dict[str, Any] = {
    "architectures": ["StableLmForCausalLM"],
    "bos_token_id": 100257,
    "eos_token_id": 100257,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 5632,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 4096,
    "model_type": "stablelm",
    "num_attention_heads": 32,
    "num_hidden_layers": 24,
    "num_key_value_heads": 32,
    "partial_rotary_factor": 0.25,
    "rope_theta": 10000,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "use_cache": True,
    "use_qkv_bias": True,
    "vocab_size": 100352,
}


@pytest.mark.usefixtures("single_thread")
def test_a_gguf_file_holds_the_norms_of_all_heads_in_one_tensor(
    checkpoint_of: Any, agrees: Any, tmp_path: Path
) -> None:
    directory = checkpoint_of(NORMED_HEADS)
    weights = load_file(directory / "model.safetensors")
    stacked = {key: values for key, values in weights.items() if ".norms." not in key}
    for layer in range(3):
        for norm, heads in (("q_layernorm", 4), ("k_layernorm", 2)):
            prefix = f"model.layers.{layer}.self_attn.{norm}"
            rows = [weights[f"{prefix}.norms.{head}.weight"] for head in range(heads)]
            stacked[f"{prefix}.weight"] = np.stack(rows)
    save_file(stacked, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((directory / "config.json").read_text())
    form = GGUFForm("stablelm", {"rope.dimension_count": 4})
    agrees(NORMED_HEADS, write_gguf(tmp_path, tmp_path / "model.gguf", form), chunk=90)


def test_stablelm_2_1_6b_is_read_as_published() -> None:
    spec = spec_from_config(STABLELM_2_1_6B)
    assert spec.layers == (LayerSpec(None, RopeSpec(10_000.0, dim=16)),) * 24
    assert (spec.norm, spec.parallel, spec.gated_mlp, spec.norm_eps) == (NormKind.LAYER, Parallel.NO, True, 1e-5)
    assert (spec.qkv_bias, spec.output_bias, spec.mlp_bias) == (True, False, False)


def test_stablelm_2_12b_norms_each_head_by_weights_of_its_own() -> None:
    spec = spec_from_config(STABLELM_2_1_6B | {"qk_layernorm": True, "use_parallel_residual": True})
    assert (spec.qk_norm, spec.parallel) == (QKNorm.LAYER_OF_EACH_HEAD, Parallel.ONE_NORM)
