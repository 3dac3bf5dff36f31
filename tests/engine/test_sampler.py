"""Sampling: exact tokens for exact draws, a generator that depends on seed and index alone, rows that never touch."""

from __future__ import annotations

import math
import sys
from collections import Counter
from functools import partial

import pytest
import torch

from engine.sampler import Sampler, uniform_draw
from engine.sampling_params import SamplingParams
from kernels.cpu.library import LibraryError, NativeLibrary


@pytest.fixture(autouse=True, params=["native", "torch"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of this holds for both."""
    if request.param == "native":
        try:
            library = NativeLibrary()
        except LibraryError as error:
            pytest.skip(str(error))
        monkeypatch.setattr(sys.modules[__name__], "Sampler", partial(Sampler, library))


ALMOST_ONE = 1.0 - 2.0**-53
HALVES = [0.125, 0.5, 0.125, 0.25]  # most likely first: tokens 1, 3, then 0 and 2


def params(**choices: float | int) -> SamplingParams:
    return SamplingParams(max_tokens=1, **choices)  # type: ignore[arg-type]


def logits_of(probabilities: list[float], shift: float = 3.0) -> torch.Tensor:
    return torch.tensor([math.log(p) + shift if p else -math.inf for p in probabilities])


def sample(logits: torch.Tensor, draw: float, **choices: float | int) -> int:
    return Sampler().sample(logits[None], [params(**choices)], [draw])[0]


def distribution(probabilities: list[float], **choices: float | int) -> dict[int, float]:
    """Share of each token over 200 evenly spread draws."""
    draws = [(i + 0.5) / 200 for i in range(200)]
    logits = logits_of(probabilities).expand(200, len(probabilities))
    counts = Counter(Sampler().sample(logits, [params(**choices)] * 200, draws))
    return {token: count / 200 for token, count in counts.items()}


def reference(logits: torch.Tensor, draw: float, one: SamplingParams) -> int:
    """Temperature, top-k, top-p, min-p, inverse CDF over what is left; all in Python numbers."""
    top = float(logits.max())
    weights = [math.exp((x - top) / one.temperature) for x in logits.double().tolist()]
    order = sorted(range(len(weights)), key=lambda token: -weights[token])
    order = order[: one.top_k or len(order)]
    total, kept, mass = math.fsum(weights[token] for token in order), [], 0.0
    for token in order:
        if one.top_p < 1.0 and mass >= one.top_p * total:
            break
        if weights[token] < one.min_p:
            break
        kept.append(token)
        mass += weights[token]
    target, mass = draw * math.fsum(weights[token] for token in kept), 0.0
    for token in kept:
        mass += weights[token]
        if mass > target:
            return token
    return kept[-1]


# ---- greedy


def test_greedy_is_the_largest_logit_whatever_the_draw() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [-1.0, -5.0, -0.5]])
    greedy = [params(temperature=0.0)] * 2
    assert Sampler().sample(logits, greedy, [0.0, 0.0]) == [1, 2]
    assert Sampler().sample(logits, greedy, [ALMOST_ONE, 0.5]) == [1, 2]


def test_greedy_takes_the_first_of_equals_alone_and_beside_sampled_rows() -> None:
    logits = torch.zeros(3, 1000)
    logits[:, 400::7] = 2.0
    greedy = params(temperature=0.0)
    assert Sampler().sample(logits, [greedy] * 3, [0.5] * 3) == [400, 400, 400]
    assert Sampler().sample(logits, [greedy, params(), greedy], [0.5] * 3)[::2] == [400, 400]


@pytest.mark.parametrize("temperature", [1e-4, 1e-7, 1e-30, 1e-300, 5e-324])
def test_c01_a_tiny_temperature_equals_greedy(temperature: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(20, 5000) * 10
    greedy = Sampler().sample(logits, [params(temperature=0.0)] * 20, [0.0] * 20)
    for choices in ({}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.1}):
        tiny = [params(temperature=temperature, **choices)] * 20
        assert Sampler().sample(logits, tiny, [i / 20 for i in range(20)]) == greedy


def test_a_huge_temperature_is_uniform_over_what_may_be_drawn() -> None:
    shares = distribution([0.9, 0.05, 0.0, 0.05], temperature=1e9)
    assert shares == pytest.approx({0: 1 / 3, 1: 1 / 3, 3: 1 / 3}, abs=0.0051)


# ---- exact distributions


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ({}, {0: 0.125, 1: 0.5, 2: 0.125, 3: 0.25}),
        ({"temperature": 0.5}, {0: 1 / 22, 1: 16 / 22, 2: 1 / 22, 3: 4 / 22}),
        ({"top_k": 1}, {1: 1.0}),
        ({"top_k": 2}, {1: 2 / 3, 3: 1 / 3}),
        ({"top_k": 4}, {0: 0.125, 1: 0.5, 2: 0.125, 3: 0.25}),
        ({"top_k": 100}, {0: 0.125, 1: 0.5, 2: 0.125, 3: 0.25}),
        ({"top_p": 0.49}, {1: 1.0}),
        ({"top_p": 0.51}, {1: 2 / 3, 3: 1 / 3}),
        ({"top_p": 0.74}, {1: 2 / 3, 3: 1 / 3}),
        ({"top_p": 0.0}, {1: 1.0}),
        ({"top_p": 0.999}, {0: 0.125, 1: 0.5, 2: 0.125, 3: 0.25}),
        ({"min_p": 1.0}, {1: 1.0}),
        ({"min_p": 0.51}, {1: 1.0}),
        ({"min_p": 0.49}, {1: 2 / 3, 3: 1 / 3}),
        ({"min_p": 0.24}, {0: 0.125, 1: 0.5, 2: 0.125, 3: 0.25}),
        # top-p counts the mass that top-k left: token 1 has 2/3 of it
        ({"top_k": 2, "top_p": 0.6}, {1: 1.0}),
        ({"top_k": 2, "top_p": 0.7}, {1: 2 / 3, 3: 1 / 3}),
        # temperature comes before the filters: token 1 has 16/22, token 3 a quarter of token 1
        ({"temperature": 0.5, "top_p": 0.7}, {1: 1.0}),
        ({"temperature": 0.5, "min_p": 0.26}, {1: 1.0}),
        ({"temperature": 0.5, "min_p": 0.24}, {1: 0.8, 3: 0.2}),
        ({"temperature": 2.0, "top_k": 2}, {1: 2**0.5 / (2**0.5 + 1), 3: 1 / (2**0.5 + 1)}),
        ({"top_p": 0.9, "min_p": 0.49}, {1: 2 / 3, 3: 1 / 3}),
        ({"top_k": 3, "top_p": 0.5, "min_p": 0.01}, {1: 1.0}),
    ],
)
def test_the_share_of_every_token_is_its_probability_after_the_filters(
    choices: dict[str, float], expected: dict[int, float]
) -> None:
    assert distribution(HALVES, **choices) == pytest.approx(expected, abs=0.0051)


def test_draws_meet_tokens_in_order_of_id_and_filtered_ones_in_order_of_likelihood() -> None:
    logits = logits_of(HALVES)
    draws = [0.1, 0.2, 0.6, 0.65, 0.74, 0.76, 0.99]
    assert [sample(logits, draw) for draw in draws] == [0, 1, 1, 2, 2, 3, 3]
    assert [sample(logits, draw, top_k=2) for draw in draws] == [1, 1, 1, 1, 3, 3, 3]


@pytest.mark.parametrize("choices", [{}, {"top_k": 3}, {"top_p": 0.999}, {"min_p": 1e-9}])
def test_the_smallest_and_the_largest_draw_give_tokens_that_may_be_drawn(choices: dict[str, float]) -> None:
    logits = logits_of([0.0, 0.0, 0.3, 0.0, 0.7, 0.0])
    first, last = sample(logits, 0.0, **choices), sample(logits, ALMOST_ONE, **choices)
    assert {first, last} == {2, 4}
    assert (first, last) == ((2, 4) if not choices else (4, 2))


def test_masked_tokens_are_never_drawn() -> None:
    logits = torch.full((1000,), -math.inf)
    logits[613] = -40.0
    for choices in ({}, {"top_k": 10}, {"top_p": 0.5}, {"min_p": 0.5}, {"temperature": 0.0}):
        assert {sample(logits, draw, **choices) for draw in (0.0, 0.3, ALMOST_ONE)} == {613}


def test_the_largest_draw_stays_in_range_where_sums_round() -> None:
    for size in (3, 1000, 262_144):
        logits = torch.linspace(-1, 1, size)
        assert sample(logits, ALMOST_ONE) == size - 1


@pytest.mark.parametrize(
    "choices",
    [
        {"top_p": 0.9},
        {"top_p": 0.999, "temperature": 3.0},
        {"min_p": 0.02},
        {"min_p": 1e-6},
        {"top_k": 40},
        {"top_k": 700},
        {"top_k": 700, "top_p": 0.95, "min_p": 1e-4},
        {"top_p": 0.3, "min_p": 0.001, "temperature": 0.7},
    ],
)
@pytest.mark.parametrize("spread", [1e-3, 1.0, 4.0])
def test_a_vocabulary_larger_than_the_first_look_gives_the_reference_token(
    choices: dict[str, float], spread: float
) -> None:
    """Flat, middling and peaked rows of 12,000 tokens: 512 candidates are too few, 8192 too, or they are plenty."""
    torch.manual_seed(1)
    logits = torch.linspace(-2, 2, 12_000)[torch.randperm(12_000)] ** 3 * spread
    assert logits.unique().numel() > 11_000
    for i in range(8):
        draw = uniform_draw(4, i)
        assert sample(logits, draw, **choices) == reference(logits, draw, params(**choices))


def test_gemma_sized_rows_where_the_first_look_is_not_enough() -> None:
    """262,144 tokens: one in the lead with half of the mass, the others all but equal."""
    size = 262_144
    logits = torch.linspace(0.001, 0.0, size)
    logits[77] = math.log(size)
    assert sample(logits, 0.4, top_p=0.9) == 77
    assert sample(logits, 0.6, top_p=0.4) == 77
    kept = {sample(logits, draw, top_p=0.75) for draw in (0.7, 0.8, 0.9, ALMOST_ONE)}
    # a quarter of the mass lies in the first half of the rest: draws of 0.7 and more fall on tokens far past 512
    assert all(512 < token < size * 0.51 for token in kept)
    assert max(kept) > size * 0.49
    assert sample(logits, ALMOST_ONE, min_p=0.5) == 77
    assert sample(logits, ALMOST_ONE, min_p=1e-9) == size - 1


# ---- the generator


def test_draws_are_a_function_of_seed_and_index() -> None:
    """Pinned: a seed given by a user must keep its tokens from one release to the next."""
    pinned = {
        (0, 0): 0.28176129772258496,
        (0, 1): 0.6524484863740322,
        (42, 7): 0.19535155971618223,
        (2**64 - 1, 100_000): 0.2640265972215945,
    }
    assert {key: uniform_draw(*key) for key in pinned} == pinned


@pytest.mark.parametrize("seed", [0, 1, 42, 2**63, 2**64 - 1])
def test_draws_are_uniform(seed: int) -> None:
    draws = [uniform_draw(seed, index) for index in range(20_000)]
    assert all(0.0 <= draw < 1.0 for draw in draws)
    assert abs(sum(draws) / 20_000 - 0.5) < 4 * (1 / 12 / 20_000) ** 0.5
    assert chi_square([int(draw * 100) for draw in draws], [1 / 100] * 100) < 150  # 99 degrees: 1 in 1400
    pairs = [int(a * 10) * 10 + int(b * 10) for a, b in zip(draws[::2], draws[1::2], strict=True)]
    assert chi_square(pairs, [1 / 100] * 100) < 150


def test_the_first_draws_of_neighbouring_seeds_are_uniform_and_independent() -> None:
    firsts = [uniform_draw(seed, 5) for seed in range(20_000)]
    assert chi_square([int(draw * 100) for draw in firsts], [1 / 100] * 100) < 150
    pairs = [int(a * 10) * 10 + int(b * 10) for a, b in zip(firsts[::2], firsts[1::2], strict=True)]
    assert chi_square(pairs, [1 / 100] * 100) < 150


def test_streams_of_different_seeds_share_no_draw() -> None:
    draws = [uniform_draw(seed, index) for seed in range(100) for index in range(200)]
    assert len(set(draws)) == len(draws)


def test_sampled_frequencies_follow_the_probabilities() -> None:
    probabilities = [0.4, 0.3, 0.15, 0.1, 0.05]
    logits = logits_of(probabilities).expand(10_000, 5)
    tokens = Sampler().sample(logits, [params()] * 10_000, [uniform_draw(9, i) for i in range(10_000)])
    assert chi_square(tokens, probabilities) < 23.5  # 4 degrees: 1 in 10,000


def chi_square(values: list[int], probabilities: list[float]) -> float:
    counts, total = Counter(values), len(values)
    return sum((counts[i] - p * total) ** 2 / (p * total) for i, p in enumerate(probabilities))


# ---- rows and their neighbours


def test_c02_c05_c07_a_row_is_the_same_alone_in_any_order_and_beside_anything() -> None:
    torch.manual_seed(2)
    logits = torch.randn(7, 2000) * 3
    logits[3, 10:] = -math.inf  # a row masked by a grammar
    choices = [
        params(temperature=0.0),
        params(temperature=1.0, top_p=0.9),
        params(temperature=0.8, seed=42),
        params(temperature=1.3),
        params(top_k=1, seed=99),
        params(min_p=0.1, top_k=600),
        params(temperature=1e-4),
    ]
    draws = [uniform_draw(i, 3) for i in range(7)]
    alone = [Sampler().sample(logits[i : i + 1], [choices[i]], [draws[i]])[0] for i in range(7)]
    assert alone[3] < 10
    for order in ([0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0], [2, 2, 2, 0, 0], [3, 0], [0, 4, 0]):
        together = Sampler().sample(logits[order], [choices[i] for i in order], [draws[i] for i in order])
        assert together == [alone[i] for i in order]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_broken_row_gives_some_token_and_harms_no_other_row(bad: float) -> None:
    torch.manual_seed(3)
    good = torch.randn(2000)
    broken = torch.full((2000,), bad)
    for one in (params(), params(top_k=5), params(top_p=0.9), params(min_p=0.1), params(temperature=0.0)):
        alone = sample(good, 0.4, temperature=0.9, min_p=0.01)
        neighbour = params(temperature=0.9, min_p=0.01)
        tokens = Sampler().sample(torch.stack([broken, good, broken]), [one, neighbour, one], [0.4] * 3)
        assert tokens[1] == alone
        assert 0 <= tokens[0] == tokens[2] < 2000


def test_sampling_leaves_the_logits_as_they_were() -> None:
    logits = torch.randn(2, 100)
    before = logits.clone()
    Sampler().sample(logits, [params(top_p=0.5), params(temperature=0.3)], [0.2, 0.9])
    assert torch.equal(logits, before)
