"""Deterministic, a row's bits do not depend on the chunk it came in, on its neighbours, or on being a decode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.attention import SharedPrefix
from kernels.gpu.backend import TritonBackend
from kernels.gpu.decode import decode_attention
from kernels.gpu.prefill import prefill_attention
from kernels.gpu.splits import SplitPlan
from kernels.gpu.tile import TileShape

BACKEND = TritonBackend(is_deterministic=True)
TILE = TileShape(rows=64, keys=16, num_warps=4, num_stages=2)
SPAN = 32
SPLITS = SplitPlan(num_splits=3, split_tiles=SPAN // TILE.keys, is_fixed=True)


def rows_of(batch: Any, start: int, end: int) -> Any:
    """The batch's first sequence as it was when positions ``start : end`` were its newest."""
    device = batch.query.device
    metadata = replace(
        batch.metadata,
        query_start_loc=torch.tensor([0, end - start], dtype=torch.int32, device=device),
        seq_lens=torch.tensor([end], dtype=torch.int32, device=device),
        block_table=batch.metadata.block_table[:1],
        max_query_len=end - start,
        max_seq_len=end,
    )
    first = int(batch.metadata.seq_lens[0]) - int(batch.metadata.query_start_loc[1])
    return replace(batch, query=batch.query[start - first : end - first], metadata=metadata)


def attend(batch: Any, *, as_decode: bool) -> torch.Tensor:
    output = torch.full_like(batch.query, float("nan"))
    options = {"scale": batch.scale, "window": batch.window, "sinks": batch.sinks, "is_deterministic": True}
    arguments = (batch.query, batch.pages, batch.metadata, output)
    if as_decode:
        decode_attention(*arguments, **options, tile=TILE, plan=SPLITS)
    else:
        prefill_attention(*arguments, **options, tile=TILE, span=SPAN)
    return output


@pytest.mark.parametrize(
    ("dtype", "pages_dtype", "window", "has_sinks"),
    [
        (torch.float32, None, None, True),
        (torch.float16, torch.int8, 40, False),
        (torch.bfloat16, torch.float8_e4m3fn, 33, True),
        (torch.bfloat16, None, None, False),
    ],
)
def test_a_row_has_the_same_bits_in_any_chunk_and_as_a_decode(
    dtype: torch.dtype, pages_dtype: torch.dtype | None, window: int | None, has_sinks: bool, make_batch: Callable
) -> None:
    whole = make_batch([90], [90], dtype=dtype, pages_dtype=pages_dtype, window=window, has_sinks=has_sinks)
    rows = attend(whole, as_decode=False)
    whole.check(rows)
    for start, end in [(0, 5), (5, 37), (37, 38), (38, 90)]:
        assert torch.equal(attend(rows_of(whole, start, end), as_decode=False), rows[start:end])
    for position in (0, 15, 16, 31, 32, 33, 63, 64, 89):
        assert torch.equal(attend(rows_of(whole, position, position + 1), as_decode=True)[0], rows[position])


def test_long_contexts_have_the_same_bits_with_the_splits_and_tiles_a_gpu_gets(make_batch: Callable) -> None:
    """Three newest rows past the first fixed split: as one chunk beside a prompt, and one by one."""
    batch = make_batch([2090, 20], [3, 9], dtype=torch.float16)
    together = BACKEND.attend(batch.query, batch.pages, batch.metadata, scale=batch.scale)
    batch.check(together)
    for row in range(3):
        alone = rows_of(batch, 2087 + row, 2088 + row)
        assert torch.equal(
            BACKEND.attend(alone.query, batch.pages, alone.metadata, scale=batch.scale)[0], together[row]
        )


def test_a_decode_has_the_same_bits_in_every_batch(make_batch: Callable) -> None:
    batch = make_batch([50, 90, 400, 7], [1, 1, 1, 1], num_q_heads=8)
    together = BACKEND.attend(batch.query, batch.pages, batch.metadata, scale=batch.scale)
    alone = rows_of(batch, 49, 50)
    assert torch.equal(BACKEND.attend(alone.query, batch.pages, alone.metadata, scale=batch.scale)[0], together[0])


def test_shared_prefixes_are_left_alone(make_batch: Callable) -> None:
    batch = make_batch([40, 37], shared=[((0, 1), 2)])
    starts, lens = torch.tensor([[0, 2], [32, 32]], dtype=torch.int32, device=batch.query.device)
    prefix = SharedPrefix(starts // 2, starts, lens, 2, 32, 8)
    outputs = [
        BACKEND.attend(batch.query, batch.pages, replace(batch.metadata, shared_prefix=shared), scale=batch.scale)
        for shared in (None, prefix)
    ]
    assert torch.equal(*outputs)
