"""Every kernel over every pair of head dim, GQA, block size, dtypes, window, softcap and sinks, against the oracle.

Batches are ragged, with rows of length 0 and 1, tables shuffled, and every slot that no row may read holds NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kernels.attention import SharedPrefix
from kernels.gpu.backend import TritonBackend
from kernels.gpu.decode import decode_attention
from kernels.gpu.prefill import prefill_attention
from kernels.gpu.splits import SplitPlan
from kernels.gpu.tile import TileShape

SPLIT = SplitPlan(num_splits=4, split_tiles=1, is_fixed=False)


def options(batch: Any, kind: Any) -> dict[str, Any]:
    return {"scale": batch.scale, "window": kind.window, "softcap": kind.softcap, "sinks": batch.sinks}


def test_split_decodes_equal_the_reference(kind: Any, make_batch: Callable) -> None:
    batch = make_batch([0, 1, 17, 0, 101], [1, 1, 1, 0, 1], **kind.batch_options)
    output = torch.full_like(batch.query, float("nan"))
    tile = TileShape(rows=16, keys=32, num_warps=4, num_stages=2)
    decode_attention(batch.query, batch.pages, batch.metadata, output, **options(batch, kind), tile=tile, plan=SPLIT)
    batch.check(output, softcap=kind.softcap)


def test_ragged_chunks_and_decodes_equal_the_reference(kind: Any, make_batch: Callable) -> None:
    batch = make_batch([0, 1, 19, 40, 70, 33], [1, 1, 19, 0, 1, 6], **kind.batch_options)
    output = torch.full_like(batch.query, float("nan"))
    tile = TileShape(rows=64, keys=32, num_warps=4, num_stages=2)
    prefill_attention(batch.query, batch.pages, batch.metadata, output, **options(batch, kind), tile=tile)
    batch.check(output, softcap=kind.softcap)


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_mixed_steps_equal_the_reference_with_the_tiles_a_gpu_gets(
    is_deterministic: bool, kind: Any, make_batch: Callable
) -> None:
    batch = make_batch([0, 1, 90, 9, 40], [1, 1, 1, 4, 2], **kind.batch_options)
    backend = TritonBackend(is_deterministic=is_deterministic)
    output = backend.attend(batch.query, batch.pages, batch.metadata, **options(batch, kind))
    batch.check(output, softcap=kind.softcap)


def test_decodes_that_share_pages_equal_the_reference(kind: Any, make_batch: Callable) -> None:
    """Two groups, of three and of two, and sequences of their own beside them, one of length 0."""
    size, pages = kind.block_size, 64 // kind.block_size
    long, short = pages * size, size
    lens = np.array([long + 5, 40, long + 1, long + size + 3, 0, 2 * size, size + 3])
    first, second = [0, 2, 3], [5, 6]
    options_of = {**kind.batch_options, "window": None}
    batch = make_batch(lens.tolist(), **options_of, shared=[(first, pages), (second, 1)])
    shared = torch.zeros(len(lens), dtype=torch.int32)
    shared[first], shared[second] = long, short
    device = batch.query.device
    prefix = SharedPrefix(
        members=torch.tensor([*first, *second], dtype=torch.int32, device=device),
        group_starts=torch.tensor([0, 3, 5], dtype=torch.int32, device=device),
        prefix_lens=shared.to(device),
        largest_group=3,
        max_prefix_len=long,
        max_own_len=int((lens - shared.numpy()).max()),
    )
    metadata = replace(batch.metadata, shared_prefix=prefix)
    output = TritonBackend().attend(batch.query, batch.pages, metadata, **{**options(batch, kind), "window": None})
    batch.check(output, softcap=kind.softcap)
