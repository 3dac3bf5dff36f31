"""Every rule that stretches rotary embedding gives what transformers gives, past the lengths where it sets in."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.backends import choose_backend
from models.checkpoint import resolve_checkpoint
from models.loader import load_model
from models.rotary import dynamic_frequencies, rotary_frequencies
from models.spec import LayerSpec, RopeSpec
from tests.models.families.family_case import Expected, FamilyCase
from tests.models.families.gguf_writer import interleaved_heads, write_gguf

CPU = torch.device("cpu")
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
YARN_KEYS = {"type": "yarn", "factor": 4.0, "original_context_length": 64}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 16.0],
}


def llama(name: str, rope: dict[str, Any], **rest: Any) -> FamilyCase:
    config = {"num_key_value_heads": 2, "rope_parameters": rope, "max_position_embeddings": rest.pop("longest", 512)}
    return FamilyCase(name, "llama", config, **rest)


CASES = {
    case.name: case
    for case in [
        llama("linear", {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}, lengths=(1, 23, 320)),
        llama("dynamic", {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}, by_token=True, longest=40),
        llama(
            "llama3",
            {
                "rope_type": "llama3",
                "rope_theta": 500_000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            lengths=(1, 23, 320),
        ),
        llama("yarn", YARN, lengths=(1, 23, 320)),
        llama("yarn not truncated", YARN | {"truncate": False, "beta_fast": 6.0, "beta_slow": 0.5}),
        llama("yarn with magnitudes", YARN | {"mscale": 1.4, "mscale_all_dim": 0.6}),
        llama(
            "yarn of magnitude 1", YARN | {"beta_fast": 20.0, "beta_slow": 0.5, "mscale": 1.0, "mscale_all_dim": 1.0}
        ),
        llama("yarn with its attention factor", YARN | {"attention_factor": 1.3}),
        llama("longrope for long servers", LONGROPE | {"original_max_position_embeddings": 16}, lengths=(17, 90, 320)),
        llama("longrope for short servers", LONGROPE | {"original_max_position_embeddings": 128}, max_model_len=128),
        llama(
            "longrope with its attention factor",
            LONGROPE | {"original_max_position_embeddings": 128, "attention_factor": 1.3},
            max_model_len=128,
        ),
    ]
}


@pytest.fixture(scope="module")
def directories(make_checkpoints: Any) -> dict[str, Path]:
    checkpoints: dict[str, Path] = make_checkpoints(list(CASES.values()))
    return checkpoints


@pytest.mark.usefixtures("single_thread")
@pytest.mark.parametrize("chunk", [7, 90])
@pytest.mark.parametrize("name", CASES)
def test_logits_and_greedy_tokens_are_those_of_transformers(
    name: str, chunk: int, directories: dict[str, Path], agrees: Any
) -> None:
    agrees(directories[name], CASES[name], Expected.read(directories[name]), chunk=chunk)


@pytest.mark.usefixtures("single_thread")
@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("linear", {"type": "linear", "factor": 4.0}),
        ("yarn", YARN_KEYS),
        ("yarn", YARN_KEYS | {"yarn_log_multiplier": 0.0, "yarn_ext_factor": 1.0, "attn_factor": 1.0}),
        (
            "yarn of magnitude 1",
            YARN_KEYS | {"yarn_beta_fast": 20.0, "yarn_beta_slow": 0.5, "yarn_log_multiplier": 1.0},
        ),
        ("longrope for long servers", {"original_context_length": 16}),
        ("longrope for short servers", {"original_context_length": 128}),
        ("longrope with its attention factor", {"original_context_length": 128, "attn_factor": 1.3}),
        ("llama3", {}),
    ],
)
def test_the_keys_and_tensors_of_a_gguf_file_say_the_same(
    name: str, keys: dict[str, Any], directories: dict[str, Path], agrees: Any, tmp_path: Path
) -> None:
    rope = CASES[name].config["rope_parameters"]
    tensors = {f"rope_factors_{kind}.weight": rope[f"{kind}_factor"] for kind in ("long", "short") if "long" in name}
    if name == "llama3":
        tensors = {"rope_freqs.weight": llama3_factors(rope, dim=16)}
    path = write_gguf(
        directories[name],
        tmp_path / "model.gguf",
        "llama",
        change=interleaved_heads,
        keys={f"rope.scaling.{key}": value for key, value in keys.items()},
        tensors=tensors,
    )
    agrees(path, CASES[name], Expected.read(directories[name]), chunk=90)


def llama3_factors(rope: dict[str, Any], dim: int) -> list[float]:
    """What each frequency is divided by, pair by pair: nothing, everything or a blend."""
    factors = []
    for pair in range(dim // 2):
        turns = rope["original_max_position_embeddings"] / (2 * math.pi * rope["rope_theta"] ** (2 * pair / dim))
        kept = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        kept = min(max(kept, 0.0), 1.0)
        factors.append(1.0 / (kept + (1.0 - kept) / rope["factor"]))
    assert len(set(factors)) == 3  # nothing, everything and a blend are there
    return factors


@pytest.mark.usefixtures("single_thread")
@pytest.mark.parametrize("name", CASES)
def test_each_rule_is_one_that_these_prompts_tell_from_none(
    name: str, directories: dict[str, Path], paged_logits: Any
) -> None:
    checkpoint = resolve_checkpoint(str(directories[name]))
    spec = checkpoint.read_spec()
    rope = spec.layers[0].rope
    assert rope is not None
    plain = replace(spec, layers=(LayerSpec(None, RopeSpec(rope.theta)),) * spec.num_layers)
    model = load_model(checkpoint, plain, device=CPU, dtype=torch.float32, backend=choose_backend(CPU)[0])
    prompt = CASES[name].prompts[-1]
    [ours] = paged_logits(model, [prompt], [[len(prompt) - 1]], chunk=90, dtype=torch.float32)
    assert (ours[0] - torch.from_numpy(Expected.read(directories[name]).prompt[-1][-1])).abs().max() > 0.02


def test_a_server_of_short_contexts_has_short_factors_at_every_position_and_any_other_long_ones() -> None:
    rope = RopeSpec(
        100.0,
        "longrope",
        {"original_max_position_embeddings": 8},
        frequency_factors=(1.0, 2.0),
        long_factors=(4.0, 8.0),
        attention_factor=1.5,
    )
    assert rotary_frequencies(rope.for_length(8), 4).tolist() == pytest.approx([1.0, 0.1 / 2.0])
    assert rotary_frequencies(rope.for_length(9), 4).tolist() == pytest.approx([0.25, 0.1 / 8.0])
    assert rotary_frequencies(rope, 4).tolist() == pytest.approx([0.25, 0.1 / 8.0])


def test_the_dynamic_base_grows_behind_the_last_position_of_the_trained_context() -> None:
    rope = RopeSpec(100.0, "dynamic", {"factor": 3.0, "max_position_embeddings": 8})
    frequencies = dynamic_frequencies(rope, 4, torch.tensor([[0], [7], [8], [15]]))
    assert frequencies[:, 0].tolist() == [1.0] * 4
    bases = [100.0, 100.0, 100.0 * (3 * 9 / 8 - 2) ** 2, 100.0 * (3 * 16 / 8 - 2) ** 2]
    assert frequencies[:, 1].tolist() == pytest.approx([base**-0.5 for base in bases])
