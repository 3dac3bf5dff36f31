"""The native backend gives a query row the same bits however the step around it looks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import pytest
import torch

from kernels.attention import KVPages
from kernels.cpu.library import Variant

OPTIONS = [{}, {"window": 100}, {"window": 300}, {"softcap": 5.0}, {"window": 300, "sinks": True}]
SINKS = torch.tensor([0.5, -1.0, 2.0, 4.0, 0.0, 1.0, -3.0, 30.0])


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def attended(batch, backend, *, sinks=False, **options):
    """With ``sinks``: some number for each head."""
    return batch.attend(backend, **options, **({"sinks": SINKS[: batch.query.shape[1]]} if sinks else {}))


def rows_of(batch, sequence, first, last):
    """The same pages, but only rows first .. last - 1 of one sequence, as a step of their own."""
    metadata = batch.metadata
    start, end = metadata.query_start_loc[sequence : sequence + 2].tolist()
    seq_len = int(metadata.seq_lens[sequence]) - (end - start) + last
    layout = replace(
        metadata,
        query_start_loc=torch.tensor([0, last - first], dtype=torch.int32),
        seq_lens=torch.tensor([seq_len], dtype=torch.int32),
        block_table=metadata.block_table[sequence : sequence + 1],
    )
    return replace(batch, query=batch.query[start + first : start + last], metadata=layout)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("dtype", "pages_dtype"),
    [
        (torch.float32, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.float32, torch.int8),
        (torch.float32, torch.float8_e4m3fn),
        (torch.bfloat16, torch.int8),
        (torch.bfloat16, torch.float8_e4m3fn),
    ],
)
@pytest.mark.parametrize(
    ("num_q_heads", "num_kv_heads", "head_dim"),
    [(4, 1, 64), (6, 2, 80), (2, 2, 32), (8, 1, 128), (5, 1, 40), (3, 1, 256)],
)
def test_a_prefill_row_equals_its_decode(
    native, batch_of, two_threads, options, dtype, pages_dtype, num_q_heads, num_kv_heads, head_dim
):
    shape = {"num_q_heads": num_q_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
    batch = batch_of([(640, 640)], dtype=dtype, pages_dtype=pages_dtype, **shape)
    whole = attended(batch, native, **options)
    for row in (0, 1, 15, 16, 63, 64, 99, 100, 255, 256, 257, 299, 300, 511, 600, 639):
        alone = attended(rows_of(batch, 0, row, row + 1), native, **options)
        assert torch.equal(alone[0], whole[row]), f"row {row}"


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("chunk", [1, 7, 16, 100])
@pytest.mark.parametrize(
    ("dtype", "pages_dtype"),
    [
        (torch.float32, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.int8),
        (torch.float32, torch.float8_e4m3fn),
    ],
)
def test_chunks_of_a_prefill_equal_the_whole(native, batch_of, two_threads, options, chunk, dtype, pages_dtype):
    batch = batch_of([(150, 600)], dtype=dtype, pages_dtype=pages_dtype)
    whole = attended(batch, native, **options)
    chunks = [attended(rows_of(batch, 0, at, min(at + chunk, 150)), native, **options) for at in range(0, 150, chunk)]
    assert torch.equal(torch.cat(chunks), whole)


@pytest.mark.parametrize("variant", list(Variant), ids=lambda variant: variant.name)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("pages_dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn])
def test_a_sequence_alone_equals_itself_in_a_mixed_batch(
    native_variant, batch_of, two_threads, pages_dtype, options, variant
):
    backend = native_variant(variant)
    lengths = [(1, 1500), (1, 40), (200, 230), (1, 64), (0, 9), (3, 900)]
    batch = batch_of(lengths, pages_dtype=pages_dtype)
    together = attended(batch, backend, **options)
    for sequence, (rows, _) in enumerate(lengths):
        start = int(batch.metadata.query_start_loc[sequence])
        alone = attended(rows_of(batch, sequence, 0, rows), backend, **options)
        assert torch.equal(alone, together[start : start + rows]), f"sequence {sequence}"


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("pages_dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize(("num_q_heads", "num_kv_heads", "head_dim"), [(8, 2, 128), (5, 5, 64), (6, 3, 80), (8, 8, 16)])
def test_a_head_alone_equals_itself_among_those_walked_with_it(
    native_each_variant, batch_of, two_threads, num_q_heads, num_kv_heads, head_dim, pages_dtype, options
):
    shape = {"num_q_heads": num_q_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
    lengths = [(1, length) for length in (700, 300, 1, 257, 64, 16, 530, 2100, 4500)]
    batch = batch_of([*lengths, (3, 40)], pages_dtype=pages_dtype, **shape)
    together = attended(batch, native_each_variant, **options)
    group = num_q_heads // num_kv_heads
    for head in range(num_kv_heads):
        parts = [getattr(batch.pages, field.name) for field in fields(KVPages)]
        pages = [part if part is None else part[:, head : head + 1] for part in parts]
        queries = slice(head * group, (head + 1) * group)
        one = replace(batch, query=batch.query[:, queries].contiguous(), pages=KVPages(*pages))
        sinks = {"sinks": SINKS[queries]} if options.get("sinks") else {}
        alone = one.attend(native_each_variant, **{**options, **sinks})
        assert torch.equal(alone, together[:, queries]), f"KV head {head}"


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("pages_dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn])
def test_the_number_of_threads_changes_nothing(native, batch_of, two_threads, pages_dtype, options):
    batch = batch_of([(1, 3000), (1, 700), (90, 800)], pages_dtype=pages_dtype)
    results = []
    for num_threads in (1, 2, 3, 8):
        torch.set_num_threads(num_threads)
        results.append(attended(batch, native, **options))
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("pages_dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_the_block_size_and_the_pages_taken_change_nothing(native, batch_of, pages_dtype):
    lengths = [(1, 500), (40, 400)]
    small, large = (batch_of(lengths, block_size=size, pages_dtype=pages_dtype) for size in (16, 32))
    assert torch.equal(small.query, large.query)  # one seed, one set of numbers
    assert torch.equal(small.attend(native), large.attend(native))
