"""Limits on a cache: who sees what, and that dense attention over gathered rows computes just that."""

from __future__ import annotations

import pytest
import torch

from benchmarks.kv_study.cache_limit import NO_LIMIT, CacheLimit, LimitedBackend
from benchmarks.kv_study.cached_text import CHUNK, CachedText
from benchmarks.kv_study.studied_model import StudiedModel
from kernels.attention import AttentionMetadata, KVPages
from kernels.backends import choose_backend

BLOCK, HEADS, KV_HEADS, DIM, LENGTH = 16, 4, 2, 8, 70


def test_who_sees_what() -> None:
    seen = CacheLimit(kept=4, sinks=1).visible(torch.tensor([1, 3, 6]), 8)
    assert [row.nonzero().flatten().tolist() for row in seen] == [[0, 1], [0, 1, 2, 3], [0, 4, 5, 6]]
    plain = CacheLimit(kept=2).visible(torch.tensor([0, 5]), 8)
    assert [row.nonzero().flatten().tolist() for row in plain] == [[0], [4, 5]]
    assert NO_LIMIT.visible(torch.tensor([7]), 8).all()


def paged(dtype: torch.dtype, rows: int) -> tuple[torch.Tensor, KVPages, AttentionMetadata]:
    """The last ``rows`` queries of a sequence whose pages lie in no order."""
    backend, _ = choose_backend(torch.device("cpu"))
    generator = torch.Generator().manual_seed(3)
    table = torch.tensor([[4, 2, 5, 1, 3]], dtype=torch.int32)
    scales = [torch.zeros(6, KV_HEADS, BLOCK) for _ in range(2)] if dtype == torch.int8 else []
    pages = KVPages(*(torch.zeros(6, KV_HEADS, BLOCK, DIM, dtype=dtype) for _ in range(2)), *scales)
    key, value = torch.randn(2, LENGTH, KV_HEADS, DIM, generator=generator)
    slots = torch.tensor([int(table[0, at // BLOCK]) * BLOCK + at % BLOCK for at in range(LENGTH)])
    backend.store_kv(key, value, pages, slots)
    metadata = AttentionMetadata(
        torch.tensor([0, rows], dtype=torch.int32),
        torch.tensor([LENGTH], dtype=torch.int32),
        table,
        slots,
        rows,
        LENGTH,
    )
    return torch.randn(rows, HEADS, DIM, generator=generator), pages, metadata


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_sinks_that_reach_the_window_are_a_whole_cache(dtype: torch.dtype) -> None:
    backend, _ = choose_backend(torch.device("cpu"))
    query, pages, metadata = paged(dtype, 20)
    limited = LimitedBackend(backend)
    limited.limit = CacheLimit(kept=LENGTH, sinks=4)
    expected = backend.attend(query, pages, metadata, scale=0.3)
    torch.testing.assert_close(limited.attend(query, pages, metadata, scale=0.3), expected, rtol=1e-5, atol=1e-5)


def test_a_window_with_sinks_reads_them_and_the_newest_and_nothing_between() -> None:
    backend, _ = choose_backend(torch.device("cpu"))
    query, pages, metadata = paged(torch.float32, 1)
    limited = LimitedBackend(backend)
    limited.limit = CacheLimit(kept=12, sinks=3)
    found = limited.attend(query, pages, metadata, scale=0.3)
    for page, offset in ((4, 3), (2, 0), (1, 12)):  # positions 3, 16 and 60: not seen
        pages.key[page, :, offset] = pages.value[page, :, offset] = 1e9
    assert torch.equal(limited.attend(query, pages, metadata, scale=0.3), found)
    for page, offset in ((4, 2), (1, 13)):  # positions 2 and 61: seen
        old = pages.value[page, :, offset].clone()
        pages.value[page, :, offset] += 1
        assert not torch.equal(limited.attend(query, pages, metadata, scale=0.3), found)
        pages.value[page, :, offset] = old


def test_layers_with_a_window_of_their_own_are_not_limited() -> None:
    backend, _ = choose_backend(torch.device("cpu"))
    query, pages, metadata = paged(torch.float32, 5)
    limited = LimitedBackend(backend)
    limited.limit = CacheLimit(kept=8, sinks=2)
    expected = backend.attend(query, pages, metadata, scale=0.3, window=30)
    assert torch.equal(limited.attend(query, pages, metadata, scale=0.3, window=30), expected)


def test_questions_leave_a_text_as_it_was(studied: StudiedModel) -> None:
    model, token_ids = studied.load(), studied.prose(0, CHUNK + 60)
    plain, asked = (CachedText(model, studied.plan(), 400) for _ in range(2))
    expected = plain.read("text", token_ids, 0)
    first = asked.read("text", token_ids[:100], 0)
    asked.fork("text", "question")
    answer = asked.read("question", token_ids[100:120], 0)
    asked.close("question")
    rest = asked.read("text", token_ids[100:], 0)

    torch.testing.assert_close(torch.cat([first, rest]), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(answer, expected[100:120], rtol=1e-4, atol=1e-4)
    assert asked.blocks.audit() == []
    asked.close("text")
    usage = asked.blocks.usage()
    assert (usage.held, usage.free) == (0, usage.total)


def test_only_the_rows_that_are_asked_for_come_back(studied: StudiedModel) -> None:
    text = CachedText(studied.load(), studied.plan(), 400)
    token_ids = studied.prose(0, CHUNK + 10)
    rows = text.read("text", token_ids, CHUNK - 2)
    assert rows.shape == (12, studied.spec.vocab_size)
    torch.testing.assert_close(rows.exp().sum(-1), torch.ones(12), rtol=1e-4, atol=1e-4)
