"""The native sampler's tokens are those of the same rule in torch, in every build, on any rows and threads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampler import Sampler, uniform_draw
from engine.sampling_params import SamplingParams
from kernels import reference_layers
from kernels.cpu.library import LibraryError, NativeLibrary, Variant
from kernels.cpu.sampling import RowSampling, sample

ALMOST_ONE = 1.0 - 2.0**-53
VOCAB = 262_144


def library_of(variant: Variant | None = None) -> NativeLibrary:
    try:
        return NativeLibrary(variant=variant)
    except LibraryError as error:
        pytest.skip(str(error))


@pytest.fixture(params=list(Variant), ids=lambda variant: variant.name)
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    return library_of(request.param)


@pytest.fixture
def best() -> NativeLibrary:
    return library_of()


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """One, unless a test says otherwise: what is compared with is many small operations."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def row(
    temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, draw: float = 0.5
) -> RowSampling:
    return RowSampling(temperature, top_k, top_p, min_p, draw)


def torch_tokens(logits: torch.Tensor, rows: Sequence[RowSampling]) -> list[int]:
    params = [
        SamplingParams(max_tokens=1, temperature=one.temperature, top_k=one.top_k, top_p=one.top_p, min_p=one.min_p)
        for one in rows
    ]
    return Sampler(None).sample(logits, params, [one.draw for one in rows])


def noise(num_rows: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, size, generator=torch.Generator().manual_seed(seed))


def with_value(row: torch.Tensor, value: float, places: slice | int) -> torch.Tensor:
    row = row.clone()
    row[places] = value
    return row


def adversarial(size: int) -> dict[str, torch.Tensor]:
    some = noise(1, size)[0]
    return {
        "peaked": 4 * some,
        "flat": 1e-3 * some,
        "rounded to few values": (2 * some).round(),
        "16 bits": (3 * some).bfloat16().float(),
        "all equal": torch.full((size,), -7.5),
        "two values": torch.where(some > 0, 1.0, 0.0),
        "rising": torch.linspace(-1, 1, size),
        "one huge": with_value(some, 3e38, size // 2),
        "half the weight in one": with_value(1e-3 * some, math.log(size), size // 3),
        "half masked": with_value(some, -math.inf, slice(0, None, 2)),
        "all but one masked": with_value(torch.full((size,), -math.inf), -40.0, size - 1),
        "all masked": torch.full((size,), -math.inf),
        "some NaN": with_value(some, math.nan, slice(0, None, 3)),
        "all NaN": torch.full((size,), math.nan),
        "NaN or masked": with_value(torch.full((size,), -math.inf), math.nan, slice(0, None, 2)),
        "two infinite": with_value(some, math.inf, slice(1, None, size // 2 + 1)),
        "far apart": 3e38 * some.clamp(-1, 1),
    }


SETTINGS = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.8, "top_p": 0.9},
    {"top_p": 0.0},
    {"top_p": ALMOST_ONE},
    {"temperature": 3.0, "top_p": 0.999},
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": 10**6},
    {"top_k": 2000, "temperature": 2.0},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"min_p": 1e-300},
    {"top_k": 40, "top_p": 0.95, "min_p": 0.02},
    {"top_p": 0.9, "min_p": 0.3},
    {"temperature": 1e-30, "top_p": 0.9},
    {"temperature": 5e-324},
    {"temperature": 1e9},
    {"temperature": 1e9, "top_p": 0.5},
]


@cache
def expected_tokens(size: int) -> dict[str, list[int]]:
    """Of each kind of row, what the rule in torch gives for all ``rows_of``."""
    return {
        name: torch_tokens(logits.expand(len(rows_of(size)), size), rows_of(size))
        for name, logits in adversarial(size).items()
    }


def rows_of(size: int) -> list[RowSampling]:
    return [row(**one, draw=draw) for one in SETTINGS for draw in (0.0, uniform_draw(size, 1), ALMOST_ONE)]


@pytest.mark.parametrize("size", [1, 17, 4097])
def test_every_kind_of_row_gets_the_token_of_the_rule_in_torch(library: NativeLibrary, size: int) -> None:
    rows, expected = rows_of(size), expected_tokens(size)
    for name, logits in adversarial(size).items():
        assert sample(library, logits.expand(len(rows), size), rows) == expected[name], name


@pytest.mark.parametrize("name", ["peaked", "flat", "16 bits", "all equal", "half the weight in one", "half masked"])
def test_a_gemma_sized_row_gets_the_token_of_the_rule_in_torch(best: NativeLibrary, name: str) -> None:
    """Wide rows are searched in other ways than short ones, by how their weight is spread."""
    choices = [{}, {"temperature": 0.8, "top_p": 0.9}, {"min_p": 0.05}, {"top_k": 9000}, {"top_p": 0.5, "min_p": 1e-9}]
    rows = [row(**one, draw=uniform_draw(7, index)) for index, one in enumerate(choices)]
    logits = adversarial(VOCAB)[name].expand(len(rows), VOCAB)
    assert sample(best, logits, rows) == torch_tokens(logits, rows)


def unlike_its_sample(name: str) -> torch.Tensor:
    """A wide row whose slices begin otherwise than they go on: a guess from their first tokens is wrong."""
    logits = noise(1, VOCAB, seed=5)[0]
    first = logits.view(-1, 4096)[:, :64]
    if name == "masked":
        first.fill_(-math.inf)
    elif name == "NaN":
        first.fill_(math.nan)
    else:
        first += {"heavier": 8.0, "lighter": -8.0, "a little heavier": 0.5}[name]
    return logits


@pytest.mark.parametrize("name", ["masked", "NaN", "heavier", "lighter", "a little heavier"])
@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_a_wide_row_that_is_unlike_its_sample_gets_the_token_of_the_rule_in_torch(
    best: NativeLibrary, name: str, spread: float
) -> None:
    rows = [row(top_p=top_p, draw=uniform_draw(3, index)) for index, top_p in enumerate((0.3, 0.9, 0.9999, ALMOST_ONE))]
    logits = (spread * unlike_its_sample(name)).expand(len(rows), VOCAB)
    assert sample(best, logits, rows) == torch_tokens(logits, rows)


@pytest.mark.parametrize("size", [4, 4097, VOCAB])
def test_top_p_tells_shares_apart_that_differ_by_less_than_float32_does(library: NativeLibrary, size: int) -> None:
    """Weights of 1, 1/2, 1/4 and 1/4: a share of a half is the first token, a little more the second one too."""
    logits = torch.full((1, size), -math.inf)
    logits[0, torch.tensor([0, 1, 2, -1])] = torch.tensor([0.0, -1.0, -2.0, -2.0])
    little = 1e-12
    cases = ((0.5 - little, 0), (0.5 + little, 1), (0.75 - little, 1), (0.75 + little, 2), (0.875 + little, size - 1))
    for top_p, last in cases:
        last_kept = row(temperature=1 / math.log(2), top_p=top_p, draw=ALMOST_ONE)
        assert sample(library, logits, [last_kept]) == [last], top_p


def test_a_gemma_sized_row_gets_the_oracles_token(best: NativeLibrary) -> None:
    for spread in (0.01, 1.0, 3.0):
        logits = spread * noise(1, VOCAB, seed=3)[0]
        for index, one in enumerate(({"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 50}, {})):
            wanted = row(**{"temperature": 0.8, **one}, draw=uniform_draw(9, index))
            assert sample(best, logits[None], [wanted]) == [reference_layers.sample(logits, **wanted._asdict())]


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(st.sampled_from([-math.inf, -3.0, 0.0, 1e-6, 1.0, 1.5, 40.0, math.nan, math.inf]), min_size=1),
    temperature=st.sampled_from([0.0, 1e-30, 0.3, 1.0, 7.0, 1e300]),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([0.0, 0.3, 0.7, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 1e-9, 0.2, 0.99]),
    draw=st.floats(0.0, ALMOST_ONE),
)
def test_any_small_row_gets_the_token_of_the_rule_in_torch(
    values: list[float], temperature: float, top_k: int, top_p: float, min_p: float, draw: float
) -> None:
    logits, rows = torch.tensor([values]), [RowSampling(temperature, top_k, top_p, min_p, draw)]
    assert sample(library_of(), logits, rows) == torch_tokens(logits, rows)


@pytest.mark.parametrize("spread", [0.01, 3.0])
def test_a_rows_token_is_the_same_alone_and_in_any_batch_on_any_number_of_threads(
    best: NativeLibrary, spread: float
) -> None:
    choices = [{}, {"top_p": 0.9}, {"min_p": 0.3}, {"top_k": 30}, {"temperature": 0.0}]
    rows = [row(**one, draw=uniform_draw(1, index)) for index, one in enumerate(choices)]
    logits = spread * noise(len(rows), 150_000, seed=1)
    torch.set_num_threads(1)
    alone = [sample(best, logits[i : i + 1], rows[i : i + 1])[0] for i in range(len(rows))]
    for num_threads in (1, 2, 3, 8):
        torch.set_num_threads(num_threads)
        assert [sample(best, logits[i : i + 1], rows[i : i + 1])[0] for i in range(len(rows))] == alone
        for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [1, 1, 1, 2], [3, 0]):
            assert sample(best, logits[order], [rows[i] for i in order]) == [alone[i] for i in order]


def test_rows_may_lie_in_wider_memory_and_are_left_as_they_were(best: NativeLibrary) -> None:
    wide = torch.full((3, 5000), math.nan)
    wide[:, :4500] = noise(3, 4500)
    before = wide.clone().view(torch.int32)
    rows = [row(top_p=0.5), row(temperature=0.0), row(draw=ALMOST_ONE)]
    assert sample(best, wide[:, :4500], rows) == torch_tokens(wide[:, :4500], rows)
    assert torch.equal(wide.view(torch.int32), before)


def test_what_does_not_fit_is_refused(best: NativeLibrary) -> None:
    with pytest.raises(ValueError, match="must be float32"):
        sample(best, torch.zeros(1, 4, dtype=torch.float64), [row()])
    with pytest.raises(ValueError, match="of 1 to"):
        sample(best, torch.zeros(1, 0), [row()])
    with pytest.raises(ValueError, match="must be contiguous"):
        sample(best, torch.zeros(4, 2).T, [row()] * 2)
    with pytest.raises(ValueError, match="1 rows of parameters for 2"):
        sample(best, torch.zeros(2, 4), [row()])
    assert sample(best, torch.zeros(0, 4), []) == []
