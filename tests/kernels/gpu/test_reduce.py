from __future__ import annotations

import math

import pytest
import torch

from kernels.attention import AttentionMetadata
from kernels.gpu.reduce import merge_splits
from kernels.gpu.splits import SplitLimits

LIMITS = SplitLimits(min_tiles=1, max_splits=8)  # with 16 keys to a tile: a split every 16 tokens, up to 128


def decodes(seq_lens: list[int], device: torch.device) -> AttentionMetadata:
    return AttentionMetadata(
        query_start_loc=torch.arange(len(seq_lens) + 1, dtype=torch.int32, device=device),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=device),
        block_table=torch.empty(0, 0, dtype=torch.int32, device=device),
        slot_mapping=torch.empty(0, dtype=torch.int64, device=device),
        max_query_len=1,
        max_seq_len=max(seq_lens),
    )


def merge(partial: torch.Tensor, lse: torch.Tensor, seq_lens: list[int], head_dim: int = 64) -> torch.Tensor:
    output = torch.full((len(seq_lens), partial.shape[1], head_dim), -7.0, device=partial.device)
    metadata = decodes(seq_lens, partial.device)
    merge_splits(partial, lse, metadata, output, window=None, tile_keys=16, limits=LIMITS)
    return output


def test_splits_weigh_in_by_their_share_of_the_sum(device: torch.device) -> None:
    partial = torch.randn(2, 3, 4, 64, device=device)
    lse = 20 * torch.randn(2, 3, 4, device=device)  # some splits vanish beside others
    share = torch.softmax(lse.double() * math.log(2), dim=-1)
    expected = (share[..., None] * partial.double()).sum(2)
    torch.testing.assert_close(merge(partial, lse, [64, 50]).double(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("seq_len", "used"), [(1, 1), (16, 1), (17, 2), (48, 3), (49, 4)])
def test_splits_a_sequence_does_not_have_are_not_read(seq_len: int, used: int, device: torch.device) -> None:
    partial = torch.randn(1, 2, 4, 64, device=device)
    lse = torch.zeros(1, 2, 4, device=device)
    partial[:, :, used:] = float("nan")
    lse[:, :, used:] = float("nan")
    expected = partial[:, :, :used].mean(2)
    torch.testing.assert_close(merge(partial, lse, [seq_len]), expected, rtol=0, atol=1e-6)


def test_a_single_split_comes_through_bit_for_bit(device: torch.device) -> None:
    partial = torch.randn(1, 2, 4, 128, device=device)
    lse = torch.randn(1, 2, 4, device=device)
    assert torch.equal(merge(partial, lse, [9], head_dim=80), partial[:, :, 0, :80])
