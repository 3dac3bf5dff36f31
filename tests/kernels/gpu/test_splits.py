"""Splits cover every visible position once, fill a GPU where the batch does not, and stand still where asked to."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kernels.gpu.splits import FIXED_SPLIT, MAX_SPLITS, SplitPlan, choose_num_splits, divide, num_multiprocessors

H100_SMS = 132


def division_kernel(
    ends_ptr, out_ptr, num_splits, COUNT: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr,
    SPLIT_TILES: tl.constexpr, IS_FIXED: tl.constexpr,
):  # fmt: skip
    for index in range(COUNT):
        end = tl.load(ends_ptr + index)
        first = tl.maximum(end - WINDOW, 0) if WINDOW > 0 else 0
        origin, length = divide(first, end, num_splits, TILE, SPLIT_TILES, IS_FIXED)
        tl.store(out_ptr + 2 * index, origin)
        tl.store(out_ptr + 2 * index + 1, length)


def divisions(lengths: list[int], window: int | None, plan: SplitPlan, device: torch.device) -> list[list[int]]:
    """Origin and length of the splits of every sequence, with 32 keys to a tile."""
    out = torch.zeros(len(lengths), 2, dtype=torch.int32, device=device)
    ends = torch.tensor(lengths, dtype=torch.int32, device=device)
    triton.jit(division_kernel)[(1,)](
        ends, out, plan.num_splits, COUNT=len(lengths), TILE=32, WINDOW=window or 0, **plan.constants
    )
    return out.tolist()


@pytest.mark.parametrize("window", [None, 1, 31, 33, 500])
def test_balanced_splits_cover_what_is_visible_and_fit_the_grid(window: int | None, device: torch.device) -> None:
    lengths = [1, 31, 32, 33, 127, 128, 129, 255, 256, 257, 511, 700]
    plan = SplitPlan(num_splits=5, split_tiles=2, is_fixed=False)
    for end, (origin, length) in zip(lengths, divisions(lengths, window, plan, device), strict=True):
        first = 0 if window is None else max(0, end - window)
        assert origin == first // 32 * 32
        assert length % 32 == 0
        assert length >= 64
        assert -(-(end - origin) // length) <= 5


@pytest.mark.parametrize("window", [None, 1, 31, 33, 500])
def test_fixed_splits_begin_at_multiples_of_their_length_and_fit_the_grid(
    window: int | None, device: torch.device
) -> None:
    lengths = [1, 63, 64, 65, 127, 128, 129, 500, 512, 563, 564, 700]
    visible = 700 if window is None else min(700, window + 63)
    plan = SplitPlan(num_splits=-(-visible // 64), split_tiles=2, is_fixed=True)
    for end, (origin, length) in zip(lengths, divisions(lengths, window, plan, device), strict=True):
        first = 0 if window is None else max(0, end - window)
        assert (origin, length) == (first // 64 * 64, 64)
        assert -(-(end - origin) // length) <= plan.num_splits


@pytest.mark.parametrize("window", [None, 1, 2048, 2049, 2050, 5000])
def test_a_fixed_plan_has_room_for_every_length_up_to_the_longest(window: int | None) -> None:
    for longest in (1, 2047, 2048, 2049, 4096, 4097, 9000):
        plan = SplitPlan.fixed(max_seq_len=longest, window=window, tile_keys=64)
        assert plan.split_tiles * 64 == FIXED_SPLIT
        for end in {longest, max(1, longest - 1), max(1, longest - 2047)}:
            first = 0 if window is None else max(0, end - window)
            assert -(-(end - first // FIXED_SPLIT * FIXED_SPLIT) // FIXED_SPLIT) <= plan.num_splits


@pytest.mark.parametrize("num_seqs", [1, 256])
def test_a_fixed_plan_does_not_know_the_batch(num_seqs: int) -> None:
    """All that decides is in the arguments, and the batch is not among them; a balanced plan does know it."""
    one = SplitPlan.fixed(max_seq_len=32768, window=None, tile_keys=64)
    assert one == SplitPlan(16, 32, is_fixed=True)
    shape = {"num_sms": H100_SMS, "num_kv_heads": 8, "max_seq_len": 32768, "window": None, "tile_keys": 64}
    assert SplitPlan.balanced(num_seqs=num_seqs, **shape).num_splits == {1: 31, 256: 1}[num_seqs]


@pytest.mark.parametrize(
    ("num_programs", "num_tiles", "expected"),
    [
        (8, 512, 31),  # one long sequence: 8 x 31 programs, about one round
        (8, 16, 4),  # a short one: no split below 4 tiles
        (8, 3, 1),
        (264, 512, 1),  # a full round already
        (2048, 512, 1),
        (1, 4096, 61),
        (132, 512, 2),
    ],
)
def test_the_number_of_splits_fills_an_h100_and_no_more(num_programs: int, num_tiles: int, expected: int) -> None:
    assert choose_num_splits(2 * H100_SMS, num_programs, num_tiles) == expected


def test_no_number_of_splits_is_much_faster_than_the_one_chosen_and_no_lower_one_as_fast() -> None:
    def time(splits: int, programs: int, tiles: int) -> int:
        return -(-programs * splits // 264) * (-(-tiles // splits) + (2 if splits > 1 else 0))

    for programs in (1, 7, 40, 130, 200, 265, 600):
        for tiles in (1, 5, 8, 33, 300, 2000):
            chosen = choose_num_splits(264, programs, tiles)
            allowed = range(1, max(1, min(MAX_SPLITS, tiles // 4)) + 1)
            assert chosen in allowed
            fastest = min(time(splits, programs, tiles) for splits in allowed)
            assert time(chosen, programs, tiles) * 15 / 16 <= fastest
            assert all(time(splits, programs, tiles) * 15 / 16 > fastest for splits in range(1, chosen))


def test_a_window_counts_as_a_short_sequence() -> None:
    shape = {"num_sms": H100_SMS, "num_seqs": 1, "num_kv_heads": 1, "max_seq_len": 10**6, "tile_keys": 64}
    assert SplitPlan.balanced(window=1024, **shape).num_splits == 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what the interpreter is told")
def test_a_device_without_multiprocessors_counts_as_eight() -> None:
    assert num_multiprocessors(torch.device("cpu")) == 8
