from __future__ import annotations

import math

import pytest
import torch

from kernels.attention import AttentionMetadata, SharedPrefix
from kernels.gpu.reduce import Parts, merge_parts
from kernels.gpu.splits import SplitPlan

PLAN = SplitPlan(
    num_splits=4, split_tiles=1, is_fixed=True
)  # with 16 keys to a tile: a split every 16 tokens, up to 64


def decodes(seq_lens: list[int], device: torch.device) -> AttentionMetadata:
    return AttentionMetadata(
        query_start_loc=torch.arange(len(seq_lens) + 1, dtype=torch.int32, device=device),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=device),
        block_table=torch.empty(0, 0, dtype=torch.int32, device=device),
        slot_mapping=torch.empty(0, dtype=torch.int64, device=device),
        max_query_len=1,
        max_seq_len=max(seq_lens),
    )


def merge(
    rows: torch.Tensor,
    lse: torch.Tensor,
    seq_lens: list[int],
    *,
    head_dim: int = 64,
    sinks: torch.Tensor | None = None,
    prefix_lens: list[int] | None = None,
) -> torch.Tensor:
    output = torch.full((len(seq_lens), rows.shape[1], head_dim), -7.0, device=rows.device)
    metadata = decodes(seq_lens, rows.device)
    prefix, plan, num_prefix_splits = None, PLAN, 0
    if prefix_lens is not None:
        lens = torch.tensor(prefix_lens, dtype=torch.int32, device=rows.device)
        prefix, num_prefix_splits = SharedPrefix(lens, lens, lens, 2, max(prefix_lens), max(seq_lens)), 2
        plan = SplitPlan(num_splits=rows.shape[2] - 2, split_tiles=1, is_fixed=False)
    parts = Parts(rows, lse, num_prefix_splits)
    merge_parts(parts, metadata, output, window=None, tile_keys=16, plan=plan, prefix=prefix, sinks=sinks)
    return output


def test_splits_weigh_in_by_their_share_of_the_sum(device: torch.device) -> None:
    rows = torch.randn(2, 3, 4, 64, device=device)
    lse = 20 * torch.randn(2, 3, 4, device=device)  # some splits vanish beside others
    share = torch.softmax(lse.double() * math.log(2), dim=-1)
    expected = (share[..., None] * rows.double()).sum(2)
    torch.testing.assert_close(merge(rows, lse, [64, 50]).double(), expected, rtol=0, atol=2e-6)


def test_a_sink_takes_its_share_and_gives_nothing(device: torch.device) -> None:
    rows = torch.randn(1, 3, 4, 64, device=device)
    lse = torch.randn(1, 3, 4, device=device)
    sinks = torch.tensor([-100.0, 0.3, 100.0], device=device)
    scores = torch.cat([lse[0].double() * math.log(2), sinks[:, None].double()], dim=-1)
    expected = (scores.softmax(-1)[:, :4, None] * rows[0].double()).sum(1)
    torch.testing.assert_close(merge(rows, lse, [64], sinks=sinks)[0].double(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("seq_len", "used"), [(1, 1), (16, 1), (17, 2), (48, 3), (49, 4)])
def test_splits_a_sequence_does_not_have_are_not_read(seq_len: int, used: int, device: torch.device) -> None:
    rows = torch.randn(1, 2, 4, 64, device=device)
    lse = torch.zeros(1, 2, 4, device=device)
    rows[:, :, used:] = float("nan")
    lse[:, :, used:] = float("nan")
    expected = rows[:, :, :used].mean(2)
    torch.testing.assert_close(merge(rows, lse, [seq_len]), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("seq_len", "prefix_len", "used"),
    [(40, 32, [0, 1, 2]), (33, 16, [0, 2, 3]), (30, 0, [2, 3]), (16, 16, [0]), (20, 16, [0, 2])],
)
def test_parts_of_a_prefix_and_of_the_rest_are_read_where_there_are_any(
    seq_len: int, prefix_len: int, used: list[int], device: torch.device
) -> None:
    """Slots 0 and 1 are the prefix's, 2 and 3 the sequence's own."""
    rows = torch.full((1, 2, 4, 64), float("nan"), device=device)
    lse = torch.full((1, 2, 4), float("nan"), device=device)
    rows[:, :, used] = torch.randn(1, 2, len(used), 64, device=device)
    lse[:, :, used] = 0.0
    merged = merge(rows, lse, [seq_len], prefix_lens=[prefix_len])
    torch.testing.assert_close(merged, rows[:, :, used].mean(2), rtol=0, atol=1e-6)


def test_a_single_split_comes_through_bit_for_bit(device: torch.device) -> None:
    rows = torch.randn(1, 2, 4, 128, device=device)
    lse = torch.randn(1, 2, 4, device=device)
    assert torch.equal(merge(rows, lse, [9], head_dim=80), rows[:, :, 0, :80])


def test_a_sequence_without_positions_gets_zeros(device: torch.device) -> None:
    rows, lse = torch.full((1, 2, 4, 64), float("nan")), torch.full((1, 2, 4), float("nan"))
    assert torch.equal(merge(rows.to(device), lse.to(device), [0]).cpu(), torch.zeros(1, 2, 64))
