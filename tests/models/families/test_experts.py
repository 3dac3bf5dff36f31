"""Mixtures of experts: published configs become exact specs, tensors are stacked in GGUF files, the rest is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from models.checkpoint import resolve_checkpoint
from models.codes.codes_spec import CodesForm, CodesMethod
from models.errors import CheckpointError
from models.registry import spec_from_config
from models.spec import ExpertsSpec, QKNorm
from tests.models.families.cases.mixtures import CASES, DENSE_AND_SPARSE
from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import write_gguf

MIXTRAL_8X7B: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mixtral",
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 32000,
}
QWEN3_30B_A3B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
OLMOE_1B_7B: dict[str, Any] = {
    "architectures": ["OlmoeForCausalLM"],
    "attention_bias": False,
    "clip_qkv": None,
    "eos_token_id": 50279,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 1024,
    "max_position_embeddings": 4096,
    "model_type": "olmoe",
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 16,
    "num_key_value_heads": 16,
    "pad_token_id": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 50304,
}
GPT_OSS_20B: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "pad_token_id": 199999,
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
        "quant_method": "mxfp4",
    },
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}


def test_layers_are_sparse_where_the_config_says(checkpoint_of: Any) -> None:
    spec = resolve_checkpoint(str(checkpoint_of(DENSE_AND_SPARSE))).read_spec()
    assert [layer.is_sparse for layer in spec.layers] == [False, True, False, False, False]


@pytest.mark.parametrize("case", [case for case in CASES if case.gguf], ids=lambda case: case.name)
def test_a_gguf_file_holds_each_projection_of_all_experts_of_a_layer_in_one_tensor(
    case: FamilyCase, checkpoint_of: Any, tmp_path: Path
) -> None:
    path = write_gguf(checkpoint_of(case), tmp_path / "model.gguf", case.gguf[0])
    stacks = [tensor.name for tensor in gguf.GGUFReader(path).tensors if "_exps" in tensor.name]
    assert len(stacks) == 9


def test_mixtral_8x7b() -> None:
    spec = spec_from_config(MIXTRAL_8X7B)
    assert spec.experts == ExpertsSpec(num_experts=8, per_token=2, intermediate_size=14336, is_normalised=True)
    assert (spec.num_layers, spec.hidden_size, spec.head_dim, spec.num_kv_heads) == (32, 4096, 128, 8)
    assert all(layer.is_sparse and layer.window is None for layer in spec.layers)
    assert spec.inner_sizes == {14336}
    assert spec.checkpoint_dtype == "bfloat16"


def test_qwen3_30b_a3b() -> None:
    spec = spec_from_config(QWEN3_30B_A3B)
    assert spec.experts == ExpertsSpec(num_experts=128, per_token=8, intermediate_size=768, is_normalised=True)
    assert (spec.num_layers, spec.head_dim, spec.qk_norm) == (48, 128, QKNorm.HEAD)
    assert spec.inner_sizes == {768}
    dense = spec_from_config(QWEN3_30B_A3B | {"mlp_only_layers": [0, 5], "decoder_sparse_step": 3})
    assert [index for index, layer in enumerate(dense.layers) if layer.is_sparse] == [2, *range(8, 48, 3)]
    assert dense.inner_sizes == {768, 6144}


def test_olmoe_1b_7b() -> None:
    spec = spec_from_config(OLMOE_1B_7B)
    assert spec.experts == ExpertsSpec(num_experts=64, per_token=8, intermediate_size=1024, is_normalised=False)
    assert (spec.qk_norm, spec.num_kv_heads, spec.norm_eps) == (QKNorm.ALL_HEADS, 16, 1e-5)


def test_gpt_oss_20b() -> None:
    spec = spec_from_config(GPT_OSS_20B)
    assert spec.experts == ExpertsSpec(32, 4, 2880, is_normalised=True, has_bias=True)
    assert [layer.window for layer in spec.layers] == [128, None] * 12
    assert (spec.has_sinks, spec.qkv_bias, spec.output_bias, spec.mlp_bias) == (True, True, True, False)
    assert (spec.activation, spec.head_dim, spec.attention_scale) == ("swiglu_oai", 64, 0.125)
    assert (spec.max_position, spec.checkpoint_dtype) == (131072, "bfloat16")
    assert spec.codes is not None
    assert (spec.codes.method, spec.codes.form) == (CodesMethod.MXFP4, CodesForm.MXFP4)
    rope = spec.layers[0].rope
    assert rope is not None
    assert (rope.scaling, rope.theta, rope.parameters["truncate"]) == ("yarn", 150000.0, False)
    assert spec_from_config({**GPT_OSS_20B, "layer_types": None}).layers == spec.layers


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (OLMOE_1B_7B | {"clip_qkv": 8.0}, "clip_qkv is 8.0, which is not supported"),
        (GPT_OSS_20B | {"swiglu_limit": 5.0}, "swiglu_limit is 5.0, which is not supported"),
        (GPT_OSS_20B | {"swiglu_alpha": 1.0}, "swiglu_alpha is 1.0, which is not supported"),
        (QWEN3_30B_A3B | {"use_sliding_window": True}, "use_sliding_window is True, which is not supported"),
        (QWEN3_30B_A3B | {"mlp_only_layers": "all"}, "mlp_only_layers should be a list of the numbers of layers"),
        (MIXTRAL_8X7B | {"num_experts_per_tok": 9}, "num_experts_per_tok is 9, more than there are experts: 8"),
        (MIXTRAL_8X7B | {"num_local_experts": None}, "the key 'num_local_experts' is missing"),
    ],
)
def test_what_is_not_computed_is_named(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        spec_from_config(config)
    assert str(caught.value).startswith(f"config.json: {problem}")
