"""Our decoders over KV pages against transformers over whole prompts: the same logits, in float32.

Pages come in shuffled order, every unused slot is NaN, and pages that slid out of a window are taken away as it moves.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.backends import choose_backend
from models.checkpoint import resolve_checkpoint
from models.loader import load_model
from models.model import CausalLM

LogitsOf = Callable[..., list[torch.Tensor]]
CPU = torch.device("cpu")
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("tiny_llama_dir", {}),
    "llama with llama3 rope": ("tiny_llama_dir", {"rope_scaling": LLAMA3_ROPE}),
    "llama with linear rope": ("tiny_llama_dir", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "llama with tied embeddings": ("tiny_llama_dir", {"tie_word_embeddings": True}),
    "mistral with a window": (
        "tiny_llama_dir",
        {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 24},
    ),
    "gemma3": ("tiny_gemma3_dir", {}),
    "gemma3 with linear rope on full layers": (
        "tiny_gemma3_dir",
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    "gemma3 with named layer types and ropes": (
        "tiny_gemma3_dir",
        {
            "layer_types": ["full_attention", *["sliding_attention"] * 5, "full_attention"],
            "sliding_window_pattern": None,
            "rope_theta": None,
            "rope_local_base_freq": None,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 50_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5_000.0},
            },
        },
    ),
}


def load(model: str | None, dtype: torch.dtype = torch.float32) -> CausalLM:
    checkpoint = resolve_checkpoint(model)
    backend, _ = choose_backend(CPU)
    return load_model(checkpoint, checkpoint.read_spec(), device=CPU, dtype=dtype, backend=backend)


def random_prompts(lengths: list[int], bos: int, vocab_size: int) -> list[list[int]]:
    draw = random.Random(11)
    return [[bos, *(draw.randrange(3, vocab_size) for _ in range(length - 1))] for length in lengths]


def largest_difference(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    assert [logits.shape for logits in ours] == [logits.shape for logits in theirs]
    return float((torch.cat(ours) - torch.cat(theirs)).abs().max())  # NaN when any is: Python's max would lose it


TINY_PROMPTS = random_prompts([1, 23, 150], bos=256, vocab_size=280)
TINY_ROWS = [list(range(len(prompt))) for prompt in TINY_PROMPTS]


@pytest.fixture(scope="module")
def variant_dirs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny checkpoints under changed configs."""
    directories = {}
    for name, (fixture, changes) in VARIANTS.items():
        source: Path = request.getfixturevalue(fixture)
        directory = tmp_path_factory.mktemp("variant")
        config = json.loads((source / "config.json").read_text()) | changes
        config = {key: value for key, value in config.items() if value is not None}
        (directory / "config.json").write_text(json.dumps(config))
        weights = load_file(source / "model.safetensors")
        if config["tie_word_embeddings"]:  # transformers would use a head that is there, whatever the config says
            weights.pop("lm_head.weight", None)
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        directories[name] = directory
    return directories


@pytest.fixture(scope="module")
def theirs(variant_dirs: dict[str, Path], oracle_logits: Any, oracle_job: Any) -> dict[str, list[torch.Tensor]]:
    jobs = [oracle_job(directory, TINY_PROMPTS, TINY_ROWS) for directory in variant_dirs.values()]
    return dict(zip(variant_dirs, oracle_logits(jobs), strict=True))


@pytest.mark.usefixtures("single_thread")
@pytest.mark.parametrize("chunk", [7, 64])
@pytest.mark.parametrize("variant", VARIANTS)
def test_tiny_models_give_the_logits_of_transformers_at_every_position(
    variant: str,
    chunk: int,
    variant_dirs: dict[str, Path],
    theirs: dict[str, list[torch.Tensor]],
    paged_logits: LogitsOf,
) -> None:
    model = load(str(variant_dirs[variant]))
    ours = paged_logits(model, TINY_PROMPTS, TINY_ROWS, chunk=chunk, dtype=torch.float32)
    assert theirs[variant][2].std() > 0.5  # weights of no effect would agree too
    assert largest_difference(ours, theirs[variant]) < 1e-4


def test_every_variant_differs_from_its_plain_model(theirs: dict[str, list[torch.Tensor]]) -> None:
    for name, logits in theirs.items():
        plain = theirs[name.split()[0].replace("mistral", "llama")]
        assert (logits is plain) or largest_difference(logits, plain) > 0.1, name


@pytest.mark.usefixtures("single_thread")
def test_a_token_at_a_time_gives_the_logits_of_one_prefill(tiny_gemma3_dir: Path, paged_logits: LogitsOf) -> None:
    model = load(str(tiny_gemma3_dir))
    prompts = random_prompts([90, 41], bos=256, vocab_size=280)
    rows = [list(range(len(prompt))) for prompt in prompts]
    single = paged_logits(model, prompts, rows, chunk=1, dtype=torch.float32)
    whole = paged_logits(model, prompts, rows, chunk=90, dtype=torch.float32)
    assert largest_difference(single, whole) < 1e-4


@pytest.mark.usefixtures("single_thread")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("variant", ["llama", "gemma3"])
def test_half_precision_stays_near_the_float32_logits(
    variant: str,
    dtype: torch.dtype,
    variant_dirs: dict[str, Path],
    theirs: dict[str, list[torch.Tensor]],
    paged_logits: LogitsOf,
) -> None:
    ours = paged_logits(load(str(variant_dirs[variant]), dtype), TINY_PROMPTS, TINY_ROWS, chunk=64, dtype=dtype)
    assert all(logits.dtype is torch.float32 for logits in ours)
    tolerance = 0.1 if dtype is torch.bfloat16 else 0.02  # relative: 2^-8 and 2^-11 a step, over a few dozen steps
    error = torch.cat(ours) - torch.cat(theirs[variant])
    assert float(error.norm() / torch.cat(theirs[variant]).norm()) < tolerance


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_default_model_gives_the_logits_of_transformers(
    default_model_hf_dir: Path, table_rows: torch.Tensor, paged_logits: LogitsOf, oracle_logits: Any, oracle_job: Any
) -> None:
    """A short prompt, and one that slides twice past its window of 512."""
    prompts = random_prompts([20, 1100], bos=2, vocab_size=20_000)
    rows = [sorted({*range(0, len(p), 97), *range(max(0, len(p) - 64), len(p))}) for p in prompts]
    ours = paged_logits(load(None), prompts, rows, chunk=256, dtype=torch.float32)
    [theirs] = oracle_logits([oracle_job(default_model_hf_dir, prompts, rows)])
    assert largest_difference([logits[:, table_rows] for logits in ours], theirs) < 1e-3
