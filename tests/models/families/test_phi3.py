"""Published configs of Phi 3 and Phi-4-mini become exact specs; their fused tensors are cut when they are quantised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf.constants import GGMLQuantizationType

from kernels.cpu.backend import NativeBackend
from kernels.cpu.library import NativeLibrary
from kernels.cpu.quantised_matrix import NativeKernels
from models.checkpoint import resolve_checkpoint
from models.loader import load_model
from models.registry import spec_from_config
from models.spec import RopeSpec
from models.weight_forms import Quantization, WeightForms
from tests.models.families.cases.phi3 import PHI3
from tests.models.families.gguf_writer import GGUFForm, write_gguf

PHI4_MINI: dict[str, Any] = {
    "architectures": ["Phi3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 199999,
    "embd_pdrop": 0.0,
    "eos_token_id": 199999,
    "full_attn_mod": 1,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "interpolate_factor": 1,
    "lm_head_bias": False,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "phi3",
    "num_attention_heads": 24,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "original_max_position_embeddings": 4096,
    "pad_token_id": 199999,
    "partial_rotary_factor": 0.75,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"long_factor": [2.0] * 48, "short_factor": [1.0] * 48, "type": "longrope"},
    "rope_theta": 10000.0,
    "sliding_window": 262144,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 200064,
}


@pytest.mark.usefixtures("single_thread")
def test_quantised_rows_of_fused_tensors_are_cut_as_floats_are(
    checkpoint_of: Any, paged_logits: Any, tmp_path: Path
) -> None:
    q8_0 = GGMLQuantizationType.Q8_0
    path = write_gguf(checkpoint_of(PHI3), tmp_path / "model.gguf", GGUFForm("phi3"), quantization=q8_0)
    checkpoint, library = resolve_checkpoint(str(path)), NativeLibrary()
    floats, kept = (
        load_model(
            checkpoint,
            checkpoint.read_spec(),
            device=torch.device("cpu"),
            dtype=torch.float32,
            backend=NativeBackend(library),
            forms=forms,
        )
        for forms in (None, WeightForms(Quantization.STORED, NativeKernels(library)))
    )
    prompt = PHI3.prompts[-1]
    [expected], [logits] = (
        paged_logits(model, [prompt], [list(range(len(prompt)))], chunk=90, dtype=torch.float32)
        for model in (floats, kept)
    )
    assert kept.weight_bytes() < 0.4 * floats.weight_bytes()
    assert float((logits - expected).norm() / expected.norm()) < 0.05  # activations are rounded to 8 bits, as weights


def test_the_config_of_phi4_mini_is_read_as_published() -> None:
    spec = spec_from_config(PHI4_MINI)
    assert (spec.num_layers, spec.num_q_heads, spec.num_kv_heads, spec.head_dim) == (32, 24, 8, 128)
    assert (spec.max_position, spec.vocab_size, spec.tied_embeddings) == (131072, 200064, True)
    layer = spec.layers[0]
    assert spec.layers == (layer,) * 32
    assert layer.window is None  # 262,144 positions hide nothing of 131,072
    assert layer.rope == RopeSpec(
        10_000.0,
        "longrope",
        {"original_max_position_embeddings": 4096},
        frequency_factors=(1.0,) * 48,
        long_factors=(2.0,) * 48,
        attention_factor=(1 + 5 / 12) ** 0.5,  # the context is 2^5 times the original, which is 2^12
        dim=96,
    )


@pytest.mark.parametrize("name", ["su", "yarn"])
def test_older_names_of_longrope_are_read_as_it(name: str) -> None:
    rope = PHI4_MINI["rope_scaling"] | {"type": name}
    assert spec_from_config(PHI4_MINI | {"rope_scaling": rope}) == spec_from_config(PHI4_MINI)


def test_the_window_of_phi3_mini_is_on_all_layers() -> None:
    changes = {
        "rope_scaling": None,
        "sliding_window": 2047,
        "max_position_embeddings": 4096,
        "partial_rotary_factor": None,
    }
    spec = spec_from_config(PHI4_MINI | changes)
    assert {layer.window for layer in spec.layers} == {2047}
    assert spec.layers[0].rope == RopeSpec(10_000.0)
