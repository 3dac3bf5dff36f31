from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.attention import KVPages
from kernels.gpu.prefill import prefill_attention
from kernels.gpu.tile import TileShape

# 16 tokens to a program at 4 query heads to a KV head.
TILE = TileShape(rows=64, keys=32, num_warps=4, num_stages=2)


def prefill(
    batch: Any, *, softcap: float | None = None, tile: TileShape | None = TILE, min_query_len: int = 1
) -> torch.Tensor:
    output = torch.full_like(batch.query, -7.0)
    prefill_attention(
        batch.query,
        batch.pages,
        batch.metadata,
        output,
        scale=batch.scale,
        window=batch.window,
        softcap=softcap,
        min_query_len=min_query_len,
        tile=tile,
    )
    return output


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(("num_q_heads", "num_kv_heads"), [(2, 2), (8, 2), (8, 1)])
def test_whole_prompts_and_chunks_with_history_equal_the_reference(
    num_q_heads: int, num_kv_heads: int, head_dim: int, make_batch: Callable
) -> None:
    batch = make_batch([19, 50, 61], [19, 7, 1], num_q_heads=num_q_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    batch.check(prefill(batch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("pages_dtype", [None, torch.int8, torch.float8_e4m3fn])
def test_dtypes_equal_the_reference_with_the_tiles_a_gpu_gets(
    dtype: torch.dtype, pages_dtype: torch.dtype | None, make_batch: Callable
) -> None:
    batch = make_batch([3, 40], [3, 9], dtype=dtype, pages_dtype=pages_dtype, num_q_heads=4, num_kv_heads=2)
    batch.check(prefill(batch, tile=None))


@pytest.mark.parametrize("pages_dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("head_dim", "group"), [(80, 7), (96, 5), (16, 24), (24, 3)])
def test_sizes_that_are_no_powers_of_two_are_padded(
    head_dim: int, group: int, pages_dtype: torch.dtype, make_batch: Callable
) -> None:
    batch = make_batch([12, 40], [12, 5], num_q_heads=group, head_dim=head_dim, pages_dtype=pages_dtype)
    batch.check(prefill(batch))


@pytest.mark.parametrize("softcap", [0.5, 50.0])
def test_softcap_bends_the_scores(softcap: float, make_batch: Callable) -> None:
    batch = make_batch([9, 70], [9, 20], head_dim=128)
    batch.check(prefill(batch, softcap=softcap), softcap=softcap)


@pytest.mark.parametrize("query_len", [15, 16, 17, 31, 32, 33])
def test_chunks_around_the_number_of_tokens_a_program_takes(query_len: int, make_batch: Callable) -> None:
    batch = make_batch([query_len + 3, 40, query_len], [query_len, 1, query_len])
    batch.check(prefill(batch))


@pytest.mark.parametrize("total", [31, 32, 33, 47, 48, 49, 65])
def test_g10_g11_chunks_that_end_around_the_window_and_page_borders(total: int, make_batch: Callable) -> None:
    batch = make_batch([total, total, total], [total, 10, 1], window=32)
    batch.check(prefill(batch))


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 33, 1000])
def test_windows_around_page_and_tile_borders(window: int, make_batch: Callable) -> None:
    batch = make_batch([20, 90], [20, 18], window=window)
    batch.check(prefill(batch))


@pytest.mark.parametrize("block_size", [8, 64])
def test_pages_may_be_smaller_or_larger_than_a_tile(block_size: int, make_batch: Callable) -> None:
    batch = make_batch([70, 130], [9, 4], block_size=block_size)
    batch.check(prefill(batch))


def test_every_sequence_of_a_long_ragged_batch_is_found(make_batch: Callable) -> None:
    query_lens = [1, 0, 17, 1, 16, 2, 0, 1, 15]
    batch = make_batch([length + 5 for length in query_lens], query_lens)
    batch.check(prefill(batch))


def test_rows_no_sequence_owns_are_left_alone(make_batch: Callable) -> None:
    batch = make_batch([10, 9], [10, 3])
    padded = replace(batch, query=torch.cat([batch.query, torch.full_like(batch.query, float("nan"))]))
    output = prefill(padded)
    batch.check(output[:13])
    assert (output[13:] == -7.0).all()


def test_sequences_shorter_than_min_query_len_are_left_to_others(make_batch: Callable) -> None:
    batch = make_batch([30, 30, 30], [1, 4, 1])
    output = prefill(batch, min_query_len=2)
    assert (output[[0, 5]] == -7.0).all()
    torch.testing.assert_close(output[1:5].cpu().double(), batch.expected()[1:5], rtol=0, atol=5e-6)


@pytest.mark.parametrize("window", [None, 20])
def test_a_prompt_cut_into_chunks_gives_what_it_gives_whole(window: int | None, make_batch: Callable) -> None:
    whole = make_batch([75], [75], window=window)
    rows = prefill(whole)
    for start, end in [(0, 5), (5, 37), (37, 38), (38, 75)]:
        metadata = replace(
            whole.metadata,
            query_start_loc=torch.tensor([0, end - start], dtype=torch.int32, device=rows.device),
            seq_lens=torch.tensor([end], dtype=torch.int32, device=rows.device),
            max_query_len=end - start,
            max_seq_len=end,
        )
        chunk = prefill(replace(whole, query=whole.query[start:end], metadata=metadata))
        torch.testing.assert_close(chunk, rows[start:end], rtol=0, atol=1e-6)


def test_pages_past_two_to_the_31_elements_are_read(
    make_batch: Callable, make_huge_pages: Callable[..., torch.Tensor]
) -> None:
    batch = make_batch([20], [4], dtype=torch.float16)
    keys, values = make_huge_pages("keys"), make_huge_pages("values")
    keys[-3:], values[-3:] = batch.pages.key, batch.pages.value
    table = batch.metadata.block_table + keys.shape[0] - 3
    moved = replace(batch, metadata=replace(batch.metadata, block_table=table), pages=KVPages(keys, values))
    assert torch.equal(prefill(moved), prefill(batch))
