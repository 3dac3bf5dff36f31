"""Published configs of GPT-2, GPT-NeoX, StableLM and Falcon become exact specs; older files are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from kernels.backends import choose_backend
from models.decoder import Decoder
from models.errors import CheckpointError
from models.registry import spec_from_config
from models.spec import LayerSpec, NormKind, Parallel, QKNorm, RopeSpec
from tests.models.families.cases.gpt2 import GPT2
from tests.models.families.cases.gpt_neox import GPT_NEOX
from tests.models.families.cases.stablelm import NORMED_HEADS
from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import GGUFForm, write_gguf

GPT2_SMALL: dict[str, Any] = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "vocab_size": 50257,
}
PYTHIA_160M: dict[str, Any] = {
    "architectures": ["GPTNeoXForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "gelu",
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "use_cache": True,
    "use_parallel_residual": True,
    "vocab_size": 50304,
}
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
FALCON_7B: dict[str, Any] = {
    "alibi": False,
    "apply_residual_connection_post_layernorm": False,
    "architectures": ["FalconForCausalLM"],
    "attention_dropout": 0.0,
    "bias": False,
    "bos_token_id": 11,
    "eos_token_id": 11,
    "hidden_dropout": 0.0,
    "hidden_size": 4544,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "falcon",
    "multi_query": True,
    "new_decoder_architecture": False,
    "num_attention_heads": 71,
    "num_hidden_layers": 32,
    "parallel_attn": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 65024,
}


@pytest.mark.usefixtures("single_thread")
@pytest.mark.parametrize(
    ("case", "root", "masks"),
    [
        (GPT2, "transformer.", ("h.1.attn.bias", "h.1.attn.masked_bias")),
        (
            GPT_NEOX,
            "",
            (
                "gpt_neox.layers.1.attention.bias",
                "gpt_neox.layers.1.attention.masked_bias",
                "gpt_neox.layers.1.attention.rotary_emb.inv_freq",
            ),
        ),
    ],
    ids=["gpt2", "gpt neox"],
)
def test_older_files_hold_masks_that_are_computed_and_some_leave_out_the_first_part_of_names(
    case: FamilyCase, root: str, masks: tuple[str, ...], checkpoint_of: Any, agrees: Any, tmp_path: Path
) -> None:
    directory = checkpoint_of(case)
    weights = load_file(directory / "model.safetensors")
    renamed = {key.removeprefix(root): values for key, values in weights.items()}
    assert root == "" or not weights.keys() & renamed.keys()
    computed = {"bias": np.ones((1, 1, 4, 4), bool), "masked_bias": np.array(-1e9), "inv_freq": np.ones(4)}
    held = {mask: computed[mask.rpartition(".")[2]] for mask in masks}
    save_file(renamed | held, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((directory / "config.json").read_text())
    agrees(case, tmp_path, chunk=90)


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


def test_gpt2_is_read_as_published() -> None:
    spec = spec_from_config(GPT2_SMALL)
    assert (spec.hidden_size, spec.intermediate_size, spec.num_q_heads, spec.num_kv_heads) == (768, 3072, 12, 12)
    assert (spec.head_dim, spec.attention_scale, spec.max_position, spec.norm_eps) == (64, 0.125, 1024, 1e-5)
    assert spec.layers == (LayerSpec(None, None),) * 12
    assert (spec.norm, spec.activation, spec.learned_positions) == (NormKind.LAYER, "gelu_tanh", True)
    assert (spec.tied_embeddings, spec.qkv_bias, spec.output_bias, spec.mlp_bias) == (True,) * 4


def test_a_table_of_positions_is_never_quantised() -> None:
    cpu = torch.device("cpu")
    model = Decoder(spec_from_config(GPT2_SMALL), choose_backend(cpu)[0], dtype=torch.float32, device=cpu)
    parameters = model.parameters()
    assert parameters["model.embed_positions.weight"].keep is None
    assert parameters["model.embed_tokens.weight"].keep is not None


def test_pythia_160m_is_read_as_published() -> None:
    spec = spec_from_config(PYTHIA_160M)
    assert spec.layers == (LayerSpec(None, RopeSpec(10_000.0, dim=16)),) * 12
    assert (spec.parallel, spec.activation, spec.gated_mlp) == (Parallel.TWO_NORMS, "gelu", False)
    assert (spec.tied_embeddings, spec.qkv_bias, spec.checkpoint_dtype) == (False, True, "float16")


def test_stablelm_2_1_6b_is_read_as_published() -> None:
    spec = spec_from_config(STABLELM_2_1_6B)
    assert spec.layers == (LayerSpec(None, RopeSpec(10_000.0, dim=16)),) * 24
    assert (spec.norm, spec.parallel, spec.gated_mlp, spec.norm_eps) == (NormKind.LAYER, Parallel.NO, True, 1e-5)
    assert (spec.qkv_bias, spec.output_bias, spec.mlp_bias) == (True, False, False)


def test_stablelm_2_12b_norms_each_head_by_weights_of_its_own() -> None:
    spec = spec_from_config(STABLELM_2_1_6B | {"qk_layernorm": True, "use_parallel_residual": True})
    assert (spec.qk_norm, spec.parallel) == (QKNorm.LAYER_OF_EACH_HEAD, Parallel.ONE_NORM)


def test_falcon_7b_is_read_as_published() -> None:
    spec = spec_from_config(FALCON_7B)
    assert (spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.intermediate_size) == (71, 1, 64, 18_176)
    assert spec.layers == (LayerSpec(None, RopeSpec(10_000.0)),) * 32
    assert (spec.parallel, spec.activation, spec.max_position) == (Parallel.ONE_NORM, "gelu", 2048)
    assert (spec.tied_embeddings, spec.qkv_bias, spec.output_bias, spec.mlp_bias) == (True, False, False, False)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (GPT2_SMALL | {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        (GPT2_SMALL | {"n_head": "12"}, "n_head should be a positive whole number"),
        (PYTHIA_160M | {"hidden_act": "relu"}, "hidden_act is 'relu', which is not supported"),
        (FALCON_7B | {"alibi": True}, "alibi is True, which is not supported"),
        (FALCON_7B | {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn is 2, which is not supported"),
    ],
)
def test_what_would_change_answers_is_refused_by_the_name_it_has_in_the_file(
    config: dict[str, Any], problem: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        spec_from_config(config)
    assert str(caught.value).startswith(f"config.json: {problem}")
