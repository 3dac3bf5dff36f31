"""The native log probabilities are those of a float64 whole sort, in every build, on any rows and threads."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu.backend import NativeBackend
from kernels.cpu.library import NativeLibrary, best_library
from kernels.cpu.logprobs import logprobs

INF, NAN = math.inf, math.nan
VOCAB = 262_144
SIZES = [1, 2, 17, 512, 4097, 20_000]


@pytest.fixture
def library(native_each_variant: NativeBackend) -> NativeLibrary:
    return native_each_variant.library


@pytest.fixture
def best(native: NativeBackend) -> NativeLibrary:
    return native.library


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def noise(num_rows: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, size, generator=torch.Generator().manual_seed(seed))


def with_value(row: torch.Tensor, value: float, places: slice | int) -> torch.Tensor:
    row = row.clone()
    row[places] = value
    return row


def kinds(size: int) -> dict[str, torch.Tensor]:
    some = noise(1, size, seed=size)[0]
    masked = torch.full((size,), -INF)
    return {
        "spread": 4 * some,
        "flat": 1e-3 * some,
        "16 bits": (3 * some).bfloat16().float(),
        "few values": (2 * some).round(),
        "equal": torch.full((size,), -7.5),
        "zeros of both signs": torch.tensor([0.0, -0.0]).repeat(size)[:size],
        "rising": torch.linspace(-1, 1, size),
        "falling": torch.linspace(1, -1, size),
        "all likely ones side by side": with_value(some, 9.0, slice(size // 3, size // 3 + 40)),
        "equal among small ones": with_value(some - 90, 5.0, slice(0, None, 1500)),
        "huge": with_value(some, 3e38, size // 2),
        "far apart": 3e38 * some.clamp(-1, 1),
        "never": with_value(some, -2e4, 0),
        "half masked": with_value(some, -INF, slice(0, None, 2)),
        "few left": with_value(masked, 2.0, slice(size // 2, size // 2 + 3)),
        "nothing": masked,
        "some NaN": with_value(some, NAN, slice(0, None, 3)),
        "NaN": torch.full((size,), NAN),
        "NaN or masked": with_value(masked, NAN, slice(0, None, 2)),
        "NaN, masked and some": with_value(with_value(masked, NAN, slice(0, None, 2)), 1.0, slice(0, 9, 4)),
        "infinite": with_value(some, INF, size - 1),
        "two infinite": with_value(with_value(some, NAN, 0), INF, slice(size // 3, None, size // 2 + 1)),
        "half infinite": with_value(some, INF, slice(0, size // 2 + 1)),
    }


def exact(logits: torch.Tensor) -> tuple[list[float], list[int]]:
    """Float64 log probabilities of a row, and its tokens in order."""
    row = logits.double().nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
    largest = row.max()
    shares = torch.where(row == largest, 0.0, -INF)
    values = torch.where(largest.isfinite(), row, shares).log_softmax(dim=0)
    order = row if largest.isfinite() else shares
    return values.tolist(), torch.sort(order, descending=True, stable=True).indices.tolist()


def assert_exact(library: NativeLibrary, logits: torch.Tensor, token_ids: list[int], num_top: int) -> None:
    """Of several tokens of one row."""
    rows = logits.expand(len(token_ids), len(logits))
    values, top_ids, ranks = logprobs(library, rows, range(len(rows)), torch.tensor(token_ids), num_top)
    expected, order = exact(logits)
    for i, token_id in enumerate(token_ids):
        assert top_ids[i].tolist() == order[:num_top]
        assert ranks[i] == 1 + order.index(token_id)
        for one, value in zip([token_id, *order[:num_top]], values[i].tolist(), strict=True):
            assert value == pytest.approx(float(torch.tensor(expected[one])), rel=1.2e-7, abs=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_every_kind_of_row_is_told_like_a_whole_sort_in_float64(library: NativeLibrary, size: int) -> None:
    for name, logits in kinds(size).items():
        order = exact(logits)[1]
        tokens = sorted({0, size - 1, size // 2, order[0], order[-1], order[min(3, size - 1)], order[size // 4]})
        for num_top in (0, 1, 20):
            try:
                assert_exact(library, logits, tokens, min(num_top, size))
            except AssertionError as error:
                raise AssertionError(f"{name}, {num_top} most likely") from error


@pytest.mark.parametrize("name", ["spread", "equal", "rising", "16 bits", "half masked", "two infinite", "some NaN"])
def test_a_gemma_sized_row_is_told_like_a_whole_sort_in_float64(best: NativeLibrary, name: str) -> None:
    assert_exact(best, kinds(VOCAB)[name], [0, 1, 77_777, VOCAB - 1], 20)


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(st.sampled_from([-INF, -3.0, -0.0, 0.0, 1e-6, 1.0, 40.0, NAN, INF]), min_size=1),
    num_top=st.integers(0, 20),
    token=st.integers(0, 10**6),
)
def test_any_small_row_is_told_like_a_whole_sort(values: list[float], num_top: int, token: int) -> None:
    library = best_library()
    if library is None:
        pytest.skip("no native library")
    assert_exact(library, torch.tensor(values), [token % len(values)], min(num_top, len(values)))


def test_as_many_may_be_told_as_there_are_tokens(library: NativeLibrary) -> None:
    for size in (1, 300, 4100):
        assert_exact(library, (2 * noise(1, size)[0]).round(), [size // 2], size)


def test_a_tokens_value_has_the_bits_of_its_entry_among_the_most_likely(library: NativeLibrary) -> None:
    logits = 3 * noise(30, 9000, seed=5)
    likely = logits.topk(20, dim=1).indices[range(30), [row % 20 for row in range(30)]]
    values, top_ids, ranks = logprobs(library, logits, range(30), likely, 20)
    for row in range(30):
        assert ranks[row] == 1 + row % 20
        assert top_ids[row, row % 20] == likely[row]
        assert values[row, 0] == values[row, 1 + row % 20]


def test_a_rows_bits_are_the_same_alone_and_in_any_batch_on_any_number_of_threads(library: NativeLibrary) -> None:
    logits = torch.cat([4 * noise(6, 150_001, seed=1), kinds(150_001)["half masked"][None]])
    token_ids = torch.tensor([5, 149_999, 0, 77, 150_000, 4096, 1])
    alone = [logprobs(library, logits, [row], token_ids[row, None], 20) for row in range(7)]
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        for order in ([0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0], [2, 2, 2, 2, 5]):
            values, top_ids, ranks = logprobs(library, logits, order, token_ids[order], 3)
            for i, row in enumerate(order):
                assert torch.equal(values[i].view(torch.int32), alone[row][0][0, :4].view(torch.int32))
                assert torch.equal(top_ids[i], alone[row][1][0, :3])
                assert ranks[i] == alone[row][2][0]


def test_rows_may_lie_in_wider_memory_and_are_left_as_they_were(best: NativeLibrary) -> None:
    wide = torch.full((4, 5000), INF)
    wide[:, :4500] = noise(4, 4500)
    before = wide.clone()
    told = logprobs(best, wide[:, :4500], [3, 1], torch.tensor([8, 9]), 5)
    kept = logprobs(best, wide[:, :4500].contiguous(), [3, 1], torch.tensor([8, 9]), 5)
    assert all(torch.equal(one, other) for one, other in zip(told, kept, strict=True))
    assert torch.equal(wide, before)


def test_what_does_not_fit_is_refused(best: NativeLibrary) -> None:
    logits, tokens = torch.zeros(2, 4), torch.tensor([0, 3])
    with pytest.raises(ValueError, match="must be float32"):
        logprobs(best, logits.double(), [0, 1], tokens, 1)
    with pytest.raises(ValueError, match=r"rows 0 to 2 must be in 0 .. 1"):
        logprobs(best, logits, [0, 2], tokens, 1)
    with pytest.raises(ValueError, match=r"token ids \[1\] torch.int64 must be int64 \[2\]"):
        logprobs(best, logits, [0, 1], tokens[:1], 1)
    with pytest.raises(ValueError, match=r"token ids \[0, 4\] must be in 0 .. 3"):
        logprobs(best, logits, [0, 1], torch.tensor([0, 4]), 1)
    with pytest.raises(ValueError, match="5 most likely tokens must be 0 to 4"):
        logprobs(best, logits, [0, 1], tokens, 5)
    assert [one.shape[0] for one in logprobs(best, logits, [], tokens[:0], 1)] == [0, 0, 0]
