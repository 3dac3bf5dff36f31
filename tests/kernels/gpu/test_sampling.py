"""The GPU's tokens are the reference's and the CPU sampler's, for the same logits, parameters, seeds and indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from kernels import reference_layers
from kernels.gpu.sampling import LARGEST_VOCABULARY, SamplingInputs, sample
from kernels.reference_layers import uniform_draw

# The interpreter's numpy warns where a GPU just computes an infinity.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero) encountered:RuntimeWarning")

OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
GREEDY = {"temperature": 0.0}
PLAIN = {"temperature": 1.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "plain": PLAIN,
    "hot": {"temperature": 3.0},
    "almost greedy": {"temperature": 1e-30},
    "top-k": {"temperature": 0.7, "top_k": 50},
    "top-k of one": {"temperature": 1.0, "top_k": 1},
    "top-k of all and more": {"temperature": 1.0, "top_k": 10**6},
    "top-p": {"temperature": 1.0, "top_p": 0.9},
    "top-p of almost all": {"temperature": 2.0, "top_p": 0.9999},
    "top-p of nothing": {"temperature": 1.0, "top_p": 0.0},
    "min-p": {"temperature": 1.2, "min_p": 0.05},
    "min-p of one": {"temperature": 1.0, "min_p": 1.0},
    "top-k, then top-p": {"temperature": 1.0, "top_k": 300, "top_p": 0.8},
    "top-k, then min-p": {"temperature": 1.0, "top_k": 20, "min_p": 0.3},
    "all": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.02},
}


def logits_of(num_rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed))


def inputs_of(
    settings: Sequence[dict[str, Any]], device: torch.device, seeds: Sequence[int], indices: Sequence[int]
) -> SamplingInputs:
    rows = [OFF | one for one in settings]
    return SamplingInputs(
        temperature=torch.tensor([one["temperature"] for one in rows], device=device),
        top_k=torch.tensor([one["top_k"] for one in rows], dtype=torch.int32, device=device),
        top_p=torch.tensor([one["top_p"] for one in rows], device=device),
        min_p=torch.tensor([one["min_p"] for one in rows], device=device),
        seed=torch.tensor(seeds, dtype=torch.int64, device=device),
        output_index=torch.tensor(indices, dtype=torch.int64, device=device),
    )


def tokens_of(
    logits: torch.Tensor, settings: Sequence[dict[str, Any]], device: torch.device, *, seed: int = 1
) -> list[int]:
    seeds = [seed + 7919 * row for row in range(len(settings))]
    inputs = inputs_of(settings, device, seeds, range(len(settings)))
    return sample(logits.to(device), inputs).tolist()


def expected_tokens(logits: torch.Tensor, settings: Sequence[dict[str, Any]], *, seed: int = 1) -> list[int]:
    return [
        reference_layers.sample(logits[row], draw=uniform_draw(seed + 7919 * row, row), **(OFF | one))
        for row, one in enumerate(settings)
    ]


def cpu_tokens(logits: torch.Tensor, settings: Sequence[dict[str, Any]], *, seed: int = 1) -> list[int]:
    """What the engine's own sampler draws; where a GPU is checked with nothing but torch there may be no engine."""
    sampler = pytest.importorskip("engine.sampler", exc_type=ImportError)
    messages = pytest.importorskip("engine.messages", exc_type=ImportError)
    draws = [sampler.uniform_draw(seed + 7919 * row, row) for row in range(len(settings))]
    params = [messages.SamplingParams(max_tokens=1, **one) for one in settings]
    tokens: list[int] = sampler.Sampler().sample(logits.float(), params, draws)
    return tokens


@pytest.mark.parametrize("vocab_size", [1, 2, 127, 129, 1000, 4096, 9001])
def test_rows_of_mixed_parameters_get_the_cpu_samplers_tokens(vocab_size: int, device: torch.device) -> None:
    settings = list(SETTINGS.values())
    logits = logits_of(len(settings), vocab_size)
    tokens = tokens_of(logits, settings, device)
    assert tokens == expected_tokens(logits, settings)
    assert tokens == cpu_tokens(logits, settings)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_16_bits_with_many_equals_get_the_references_tokens(dtype: torch.dtype, device: torch.device) -> None:
    settings = list(SETTINGS.values())
    logits = logits_of(len(settings), 3000).to(dtype)
    assert tokens_of(logits, settings, device) == expected_tokens(logits, settings)


def test_the_largest_vocabulary_of_a_model_is_searched_to_its_masked_tail(device: torch.device) -> None:
    """262,144 tokens, of which the last 200 are masked; rows lie in wider memory full of NaN."""
    settings = [GREEDY, PLAIN, SETTINGS["top-k"], SETTINGS["all"]]
    wide = torch.full((len(settings), 262_144 + 64), float("nan"))
    logits = wide[:, :262_144]
    logits.copy_(logits_of(len(settings), 262_144))
    logits[:, -200:] = -math.inf
    logits[0, -201] = 100.0
    seeds = [1 + 7919 * row for row in range(4)]
    tokens = sample(wide.to(device)[:, :262_144], inputs_of(settings, device, seeds, range(4))).tolist()
    assert tokens == expected_tokens(logits, settings)
    assert tokens[0] == 262_143 - 200


def test_each_of_a_rows_draws_finds_its_token(device: torch.device) -> None:
    """Kept are tokens of 1/2, 1/4 and 1/4 of the weight, likeliest first and equals by id."""
    row = torch.tensor([0.0, 1.0, 2.0, 1.0, -1.0]) * math.log(2)
    inputs = inputs_of([{"temperature": 1.0, "top_k": 3}] * 40, device, [5] * 40, range(40))
    tokens = sample(row.expand(40, 5).to(device), inputs).tolist()
    assert tokens == [(2, 2, 1, 3)[int(4 * uniform_draw(5, index))] for index in range(40)]
    assert set(tokens) == {1, 2, 3}


def test_greedy_takes_the_lowest_id_of_equals(device: torch.device) -> None:
    logits = torch.zeros(3, 9000)
    logits[1, [8999, 5000, 4097]] = 5.0
    logits[2, 0] = -1.0
    assert tokens_of(logits, [GREEDY] * 3, device) == [0, 4097, 1]


def test_of_equals_at_the_edge_of_a_filter_those_of_the_lowest_ids_are_kept(device: torch.device) -> None:
    settings = [{"temperature": 1.0, "top_k": 3}, {"temperature": 1.0, "top_p": 0.005}]
    tokens = tokens_of(torch.zeros(40, 600), settings * 20, device)
    assert set(tokens[::2]) == set(tokens[1::2]) == {0, 1, 2}


def test_masked_tokens_are_never_drawn(device: torch.device) -> None:
    logits = torch.full((60, 700), -math.inf)
    logits[:, [3, 650]] = 0.0
    settings = [PLAIN, SETTINGS["top-k"], SETTINGS["top-p of almost all"], SETTINGS["min-p"], SETTINGS["hot"]] * 12
    assert set(tokens_of(logits, settings, device)) == {3, 650}


@pytest.mark.parametrize("setting", ["greedy", "plain", "top-k", "top-p", "min-p"])
def test_rows_of_no_numbers_give_some_token_and_no_error(setting: str, device: torch.device) -> None:
    logits = torch.full((3, 300), float("nan"))
    logits[1] = -math.inf
    logits[2, 7] = math.inf
    tokens = tokens_of(logits, [SETTINGS[setting]] * 3, device)
    assert all(0 <= token < 300 for token in tokens)
    assert tokens[2] == 7


def test_nan_counts_as_a_masked_token(device: torch.device) -> None:
    logits = logits_of(5, 300)
    masked = logits.clone()
    logits[:, ::3], masked[:, ::3] = float("nan"), -math.inf
    settings = [GREEDY, PLAIN, SETTINGS["top-k"], SETTINGS["top-p"], SETTINGS["min-p"]]
    assert tokens_of(logits, settings, device) == expected_tokens(masked, settings)


def test_a_row_draws_the_same_token_in_every_batch(device: torch.device) -> None:
    settings = list(SETTINGS.values())
    logits = logits_of(len(settings), 500)
    inputs = inputs_of(settings, device, range(len(settings)), [9] * len(settings))
    together = sample(logits.to(device), inputs).tolist()
    for row in (1, 4, 7, 14):
        alone = inputs_of(settings[row : row + 1], device, [row], [9])
        assert sample(logits[row : row + 1].to(device), alone).tolist() == together[row : row + 1]


def test_seeds_and_indices_of_64_bits_draw_as_on_the_cpu(device: torch.device) -> None:
    seeds = [0, 1, 2**63 - 1, -1, -(2**63), 0x1234567890ABCDEF]
    indices = [0, 1, 2**40, 7, 2**62, 3]
    logits = torch.zeros(6, 4096)  # a token is 12 bits of the draw
    tokens = sample(logits.to(device), inputs_of([PLAIN] * 6, device, seeds, indices)).tolist()
    assert tokens == [int(uniform_draw(seed, index) * 4096) for seed, index in zip(seeds, indices, strict=True)]


def test_an_empty_batch_is_an_empty_batch(device: torch.device) -> None:
    assert sample(torch.empty(0, 100, device=device), inputs_of([], device, [], [])).tolist() == []


def test_what_does_not_fit_is_refused(device: torch.device) -> None:
    inputs = inputs_of([PLAIN], device, [0], [0])
    with pytest.raises(ValueError, match="need dense rows"):
        sample(torch.zeros(1, LARGEST_VOCABULARY + 1, device=device), inputs)
    with pytest.raises(ValueError, match="need dense rows"):
        sample(torch.zeros(5, 2, device=device).T[:1], inputs)
    with pytest.raises(ValueError, match=r"temperature \(1,\) torch\.float32 must be torch\.float32 of 2 rows"):
        sample(torch.zeros(2, 5, device=device), inputs)
