from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.attention import AttentionMetadata, KVPages
from kernels.gpu.decode import decode_attention
from kernels.gpu.splits import SplitPlan
from kernels.gpu.tile import TileShape

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TILE = TileShape(rows=16, keys=32, num_warps=4, num_stages=2)
SHORT_SPLITS = SplitPlan(num_splits=4, split_tiles=1, is_fixed=False)


def decode(
    batch: Any,
    *,
    softcap: float | None = None,
    tile: TileShape | None = TILE,
    plan: SplitPlan | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    output = torch.full_like(batch.query, -7.0)
    decode_attention(
        batch.query,
        batch.pages,
        batch.metadata,
        output,
        scale=batch.scale,
        window=batch.window,
        softcap=softcap,
        tile=tile,
        sinks=sinks,
        plan=plan,
    )
    return output


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(("num_q_heads", "num_kv_heads"), [(2, 2), (8, 2), (8, 1)])
def test_every_head_of_every_sequence_equals_the_reference(
    num_q_heads: int, num_kv_heads: int, head_dim: int, make_batch: Callable
) -> None:
    batch = make_batch([1, 16, 17, 75], num_q_heads=num_q_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    batch.check(decode(batch))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("plan", [None, SHORT_SPLITS])
@pytest.mark.parametrize("pages_dtype", [None, torch.int8, torch.float8_e4m3fn])
def test_dtypes_equal_the_reference_split_or_not(
    dtype: torch.dtype, pages_dtype: torch.dtype | None, plan: SplitPlan | None, make_batch: Callable
) -> None:
    batch = make_batch([3, 33, 101], dtype=dtype, pages_dtype=pages_dtype, num_q_heads=4, num_kv_heads=2)
    batch.check(decode(batch, tile=None, plan=plan))


@pytest.mark.parametrize("pages_dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("head_dim", "group"), [(80, 7), (96, 5), (16, 24), (24, 3)])
def test_sizes_that_are_no_powers_of_two_are_padded(
    head_dim: int, group: int, pages_dtype: torch.dtype, make_batch: Callable
) -> None:
    batch = make_batch([9, 40], num_q_heads=group, head_dim=head_dim, pages_dtype=pages_dtype)
    batch.check(decode(batch, tile=replace(TILE, rows=32), plan=SHORT_SPLITS))


@pytest.mark.parametrize("softcap", [0.5, 50.0])
def test_softcap_bends_the_scores(softcap: float, make_batch: Callable) -> None:
    batch = make_batch([9, 70], head_dim=128)
    batch.check(decode(batch, softcap=softcap, plan=SHORT_SPLITS), softcap=softcap)


@pytest.mark.parametrize("plan", [None, SHORT_SPLITS])
def test_g10_g11_lengths_around_the_window_and_page_borders(plan: SplitPlan | None, make_batch: Callable) -> None:
    batch = make_batch([1, 15, 31, 32, 33, 47, 48, 49, 63, 64, 65, 128], window=32)
    batch.check(decode(batch, plan=plan))


@pytest.mark.parametrize("window", [1, 15, 16, 17, 31, 33, 1000])
def test_windows_around_page_and_tile_borders(window: int, make_batch: Callable) -> None:
    batch = make_batch([16, 50, 97], window=window)
    batch.check(decode(batch, plan=SHORT_SPLITS))


@pytest.mark.parametrize("block_size", [8, 64])
def test_pages_may_be_smaller_or_larger_than_a_tile(block_size: int, make_batch: Callable) -> None:
    batch = make_batch([7, 70, 130], block_size=block_size)
    batch.check(decode(batch))


@pytest.mark.parametrize("seq_len", [31, 32, 33, 127, 128, 129, 160, 161, 257])
def test_splits_cover_every_position_once(seq_len: int, make_batch: Callable) -> None:
    batch = make_batch([seq_len])
    batch.check(decode(batch, plan=SHORT_SPLITS))


def test_a_row_has_the_same_bits_alone_and_beside_a_long_neighbour(make_batch: Callable) -> None:
    batch = make_batch([50, 90, 400])
    together = decode(batch, plan=SHORT_SPLITS)
    for sequence in range(2):
        metadata = AttentionMetadata(
            query_start_loc=batch.metadata.query_start_loc[:2],
            seq_lens=batch.metadata.seq_lens[sequence : sequence + 1],
            block_table=batch.metadata.block_table[sequence : sequence + 1],
            slot_mapping=batch.metadata.slot_mapping,
            max_query_len=1,
            max_seq_len=int(batch.metadata.seq_lens[sequence]),
        )
        alone = replace(batch, query=batch.query[sequence : sequence + 1], metadata=metadata)
        assert torch.equal(decode(alone, plan=SHORT_SPLITS)[0], together[sequence])


@pytest.mark.parametrize("plan", [None, SHORT_SPLITS])
def test_only_sequences_with_one_row_are_written(plan: SplitPlan | None, make_batch: Callable) -> None:
    batch = make_batch([40, 40, 40, 70], query_lens=[1, 5, 0, 1])
    output = decode(batch, plan=plan)
    assert (output[1:6] == -7.0).all()
    rows = [0, 6]
    torch.testing.assert_close(output[rows].cpu().double(), batch.expected()[rows], rtol=0, atol=5e-6)


def test_pages_past_two_to_the_31_elements_are_read(
    make_batch: Callable, make_huge_pages: Callable[..., torch.Tensor]
) -> None:
    batch = make_batch([20], dtype=torch.float16)
    keys, values = make_huge_pages("keys"), make_huge_pages("values")
    keys[-3:], values[-3:] = batch.pages.key, batch.pages.value
    table = batch.metadata.block_table + keys.shape[0] - 3
    moved = replace(batch, metadata=replace(batch.metadata, block_table=table), pages=KVPages(keys, values))
    assert torch.equal(decode(moved), decode(batch))


def test_head_counts_that_do_not_divide_are_refused(make_batch: Callable) -> None:
    batch = make_batch([3], num_q_heads=3, num_kv_heads=2)
    with pytest.raises(ValueError, match="3 query heads do not divide among 2 KV heads"):
        decode(batch)
