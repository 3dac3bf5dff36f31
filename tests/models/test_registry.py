"""Descriptions of checkpoints become exact ModelSpecs, or one sentence that names what is wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from models.errors import CheckpointError
from models.gguf_file import GGUFFile
from models.registry import spec_from_config, spec_from_gguf
from models.spec import LayerSpec, ModelSpec, NormPlace, QKNorm, RopeSpec

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
MISTRAL, QWEN2, PHI3, SMOLLM3 = (
    LLAMA | {"architectures": [f"{name}ForCausalLM"]} for name in ("Mistral", "Qwen2", "Phi3", "SmolLM3")
)
DYNAMIC: dict[str, Any] = {"type": "dynamic", "factor": 2.0}
LLAMA3_ROPE: dict[str, Any] = {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN: dict[str, Any] = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LONGROPE: dict[str, Any] = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
GEMMA3: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "query_pre_attn_scalar": 16,
    "vocab_size": 300,
    "max_position_embeddings": 1024,
    "sliding_window": 32,
}


def test_a_llama_config_becomes_its_spec() -> None:
    assert spec_from_config(LLAMA) == ModelSpec(
        architecture="llama",
        hidden_size=64,
        intermediate_size=128,
        num_q_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=300,
        max_position=1024,
        norm_eps=1e-5,
        layers=(LayerSpec(None, RopeSpec(500_000.0)),) * 2,
        attention_scale=0.25,
        tied_embeddings=False,
        activation="silu",
        bos_token_id=1,
        eos_token_ids=(2,),
        checkpoint_dtype="bfloat16",
    )


def test_a_mistral_config_gives_every_layer_its_window() -> None:
    mistral = LLAMA | {"architectures": ["MistralForCausalLM"], "sliding_window": 512}
    assert [layer.window for layer in spec_from_config(mistral).layers] == [512, 512]
    assert [layer.window for layer in spec_from_config(mistral | {"sliding_window": None}).layers] == [None, None]


def test_every_sixth_gemma3_layer_sees_everything_with_the_global_rotary_base() -> None:
    spec = spec_from_config(GEMMA3)
    sliding, full = LayerSpec(32, RopeSpec(10_000.0)), LayerSpec(None, RopeSpec(1_000_000.0))
    assert spec.layers == (sliding,) * 5 + (full, sliding)
    assert spec.attention_scale == 0.25
    assert spec.embedding_scale == 8.0
    assert spec.tied_embeddings
    assert spec.qk_norm is QKNorm.HEAD


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_llama3_rope_scaling_keeps_its_parameters(key: str) -> None:
    parameters = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    spec = spec_from_config(LLAMA | {key: {"rope_type": "llama3", **parameters}})
    assert spec.layers[0].rope == RopeSpec(500_000.0, "llama3", parameters)


def test_the_newer_rope_parameters_carry_the_base() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 1234.0}
    assert spec_from_config(config).layers[0].rope == RopeSpec(1234.0)


@pytest.mark.parametrize(
    ("generation", "eos"),
    [(None, (2,)), ({}, (2,)), ({"eos_token_id": 7}, (7,)), ({"eos_token_id": [7, 2, 7]}, (7, 2))],
)
def test_end_tokens_of_the_generation_config_win(generation: dict[str, object] | None, eos: tuple[int, ...]) -> None:
    assert spec_from_config(LLAMA, generation).eos_token_ids == eos


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_missing_key_is_named(key: str) -> None:
    config = {name: value for name, value in LLAMA.items() if name != key}
    with pytest.raises(CheckpointError, match=rf"^/m/config\.json: the key '{key}' is missing$"):
        spec_from_config(config, source="/m/config.json")


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            LLAMA | {"architectures": ["FooForCausalLM"]},
            "the architecture 'FooForCausalLM' is not supported; supported are",
        ),
        ({}, "the architecture None is not supported"),
        (LLAMA | {"hidden_size": "64"}, "hidden_size should be a positive whole number and is '64'"),
        (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers should be a positive whole number and is 0"),
        (LLAMA | {"num_hidden_layers": 2**31}, "num_hidden_layers is 2147483648, more layers than any model has"),
        (LLAMA | {"eos_token_id": 300}, "the special token id 300 is outside the vocabulary of 300 tokens"),
        (LLAMA | {"bos_token_id": -1}, "the special token id -1 is outside the vocabulary of 300 tokens"),
        (LLAMA | {"rms_norm_eps": -1}, "rms_norm_eps should be a positive number and is -1"),
        (LLAMA | {"num_key_value_heads": 3}, "4 query heads cannot share 3 key heads"),
        (LLAMA | {"hidden_act": "gelu"}, "hidden_act is 'gelu', which is not supported"),
        (LLAMA | {"rope_scaling": {"type": "su"}}, "rope_scaling is of type 'su'"),
        (LLAMA | {"rope_scaling": {"type": "linear"}}, "the key 'factor' is missing"),
        (
            LLAMA | {"rope_scaling": {"type": "dynamic", "factor": -2.0}},
            "factor should be a positive number and is -2.0",
        ),
        (LLAMA | {"rope_scaling": DYNAMIC | {"alpha": 1000.0}}, "alpha is 1000.0, which is not supported"),
        (
            LLAMA | {"rope_scaling": LLAMA3_ROPE | {"high_freq_factor": 1.0}},
            "high_freq_factor should be above low_freq_factor, 1.0",
        ),
        (LLAMA | {"rope_scaling": YARN | {"beta_fast": 0.5}}, "beta_fast should not be below beta_slow, 1.0"),
        (LLAMA | {"rope_scaling": YARN | {"truncate": 1}}, "truncate should be true or false and is 1"),
        (LLAMA | {"rope_scaling": YARN | {"mscale": "1"}}, "mscale should be a positive number and is '1'"),
        (
            LLAMA | {"rope_scaling": YARN | {"original_max_position_embeddings": 1}},
            "original_max_position_embeddings is 1.0, shorter than any context",
        ),
        (LLAMA | {"rope_scaling": LONGROPE | {"long_factor": 2.0}}, "long_factor should be a list of positive numbers"),
        (LLAMA | {"rope_scaling": LONGROPE | {"short_factor": None}}, "the key 'short_factor' is missing"),
        (
            LLAMA | {"rope_scaling": LONGROPE | {"long_factor": [1.0] * 7}},
            "7 rope factors are not one for each of 8 pairs",
        ),
        (LLAMA | {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "full_attention is {'rope_theta': 1.0}"),
        (LLAMA | {"rope_theta": 1.0}, "the rope base 1.0 should be above 1"),
        (LLAMA | {"partial_rotary_factor": 0.2}, "3 elements of heads of 16 cannot turn in pairs"),
        (LLAMA | {"partial_rotary_factor": 1.5}, "24 elements of heads of 16 cannot turn in pairs"),
        (MISTRAL | {"layer_types": ["sliding_attention"] * 3}, "layer_types should name one of"),
        (MISTRAL | {"layer_types": ["sliding_attention"] * 2}, "the key 'sliding_window' is missing"),
        (MISTRAL | {"sliding_window": -1}, "sliding_window should be a positive whole number and is -1"),
        (QWEN2 | {"use_sliding_window": 1}, "use_sliding_window should be true or false and is 1"),
        (
            QWEN2 | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": "all"},
            "max_window_layers should be a positive whole number and is 'all'",
        ),
        (PHI3 | {"attention_bias": True}, "attention_bias is True, which is not supported"),
        (PHI3 | {"full_attn_mod": 2}, "full_attn_mod is 2, which is not supported"),
        (PHI3 | {"rope_scaling": YARN}, "the key 'short_factor' is missing"),
        (SMOLLM3 | {"no_rope_layer_interval": 0}, "no_rope_layer_interval should be a positive whole number and is 0"),
        (LLAMA | {"sliding_window": 4096}, "sliding_window is 4096, which is not supported"),
        (LLAMA | {"quantization_config": {"quant_method": "hqq"}}, "quant_method is 'hqq', which is not supported"),
        (LLAMA | {"eos_token_id": "</s>"}, "eos_token_id should be a token id or a list of them and is '</s>'"),
        (GEMMA3 | {"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0, which is not supported"),
        (GEMMA3 | {"layer_types": ["full_attention"]}, "layer_types should name one of"),
        (GEMMA3 | {"sliding_window": None}, "the key 'sliding_window' is missing"),
    ],
)
def test_what_cannot_be_served_is_named(config: dict[str, object], problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        spec_from_config(config)
    assert str(caught.value).startswith(f"config.json: {problem}")


def test_the_unsupported_message_lists_what_is_supported() -> None:
    with pytest.raises(CheckpointError, match=r"LlamaForCausalLM, .*Gemma3ForCausalLM.*gemma3 \(GGUF\)"):
        spec_from_config({"architectures": ["Nothing"]})


def test_the_default_model_has_the_published_shapes(default_gguf: Path) -> None:
    spec = spec_from_gguf(GGUFFile(default_gguf))
    sliding, full = LayerSpec(512, RopeSpec(10_000.0)), LayerSpec(None, RopeSpec(1_000_000.0))
    assert spec == ModelSpec(
        architecture="gemma3",
        hidden_size=640,
        intermediate_size=2048,
        num_q_heads=4,
        num_kv_heads=1,
        head_dim=256,
        vocab_size=262_144,
        max_position=32_768,
        norm_eps=float(np.float32(1e-6)),
        layers=((sliding,) * 5 + (full,)) * 3,
        attention_scale=1 / 16,
        tied_embeddings=True,
        activation="gelu_tanh",
        norm_place=NormPlace.AROUND,
        norm_plus_one=True,
        embedding_scale=640**0.5,
        qk_norm=QKNorm.HEAD,
        bos_token_id=2,
        eos_token_ids=(1,),
        checkpoint_dtype="float32",
    )


def write_llama_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    scaling: str | None = None,
    factors: type[np.floating[Any]] | None = None,
    **scaling_numbers: float,
) -> GGUFFile:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(5)
    if scaling is not None:
        writer.add_string(f"{architecture}.rope.scaling.type", scaling)
        writer.add_rope_scaling_factor(4.0)
    for key, number in scaling_numbers.items():
        writer.add_float32(f"{architecture}.rope.scaling.{key}", number)
    writer.add_tensor("token_embd.weight", np.zeros((300, 64), np.float16))
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((64, 64), np.float16))
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", np.array([1, 1, 1, 1, 2, 2, 4, 8], factors))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile(path)


def test_a_llama_gguf_becomes_its_spec(tmp_path: Path) -> None:
    spec = spec_from_gguf(write_llama_gguf(tmp_path / "m.gguf"))
    assert (spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.vocab_size) == (4, 2, 16, 300)
    assert spec.layers == (LayerSpec(None, RopeSpec(10_000.0)),) * 2
    assert spec.eos_token_ids == (2, 5)
    assert spec.tied_embeddings
    assert spec.checkpoint_dtype == "float16"


def test_rotary_scaling_of_a_gguf_is_read(tmp_path: Path) -> None:
    linear = spec_from_gguf(write_llama_gguf(tmp_path / "linear.gguf", scaling="linear"))
    assert linear.layers[0].rope == RopeSpec(10_000.0, "linear", {"factor": 4.0})
    factors = spec_from_gguf(write_llama_gguf(tmp_path / "factors.gguf", factors=np.float32))
    assert factors.layers[0].rope.frequency_factors == (1, 1, 1, 1, 2, 2, 4, 8)
    yarn = spec_from_gguf(write_llama_gguf(tmp_path / "yarn.gguf", scaling="yarn", original_context_length=128))
    assert yarn.layers[0].rope == RopeSpec(
        10_000.0,
        "yarn",
        {
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": True,
        },
        attention_factor=0.1 * math.log(4.0) + 1.0,
    )


def test_rotary_scaling_of_a_gguf_that_cannot_be_computed_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"llama\.rope\.scaling\.type is of type 'su'"):
        spec_from_gguf(write_llama_gguf(tmp_path / "su.gguf", scaling="su"))
    with pytest.raises(CheckpointError, match=r"llama\.rope\.scaling\.attn_factor is 2\.0, which is not supported"):
        spec_from_gguf(write_llama_gguf(tmp_path / "factor.gguf", scaling="yarn", attn_factor=2.0))
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight and llama\.rope\.scaling\.type 'yarn' together"):
        spec_from_gguf(write_llama_gguf(tmp_path / "both.gguf", scaling="yarn", factors=np.float32))
    with pytest.raises(CheckpointError, match=r"'rope_freqs\.weight' is F16 and should be F32"):
        spec_from_gguf(write_llama_gguf(tmp_path / "half.gguf", factors=np.float16))


def test_an_unknown_gguf_architecture_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the architecture 'mamba' is not supported"):
        spec_from_gguf(write_llama_gguf(tmp_path / "m.gguf", architecture="mamba"))
