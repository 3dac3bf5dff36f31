"""Batches of sequences in shuffled pages, everything unused poisoned with NaN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from kernels import reference
from kernels.attention import AttentionBackend, AttentionMetadata, KVPages
from kernels.cpu.backend import NativeBackend, TorchBackend
from kernels.cpu.library import LibraryError, NativeLibrary, Variant
from kernels.quantisation import is_quantised


@dataclass(frozen=True)
class PagedBatch:
    """One step: queries, pages and layout. ``lengths`` are (query rows, tokens in all) per sequence."""

    query: torch.Tensor
    pages: KVPages
    metadata: AttentionMetadata

    def attend(self, backend: AttentionBackend, **options: float | int | None) -> torch.Tensor:
        options = {"scale": self.query.shape[2] ** -0.5, **options}
        return backend.attend(self.query, self.pages, self.metadata, **options)

    def expected(self, **options: float | int | None) -> torch.Tensor:
        return self._expected(self.query, self.pages, **options)

    def rounded_expected(
        self, backend: AttentionBackend, **options: float | int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What ``backend`` computes where products are of bfloat16 numbers or of bytes, and how far off it may be.

        The first is exact for the query as it is rounded then; elsewhere as `expected`, with no allowance.
        """
        if not isinstance(backend, NativeBackend):
            return self.expected(**options), torch.zeros(())
        variant, head_dim, pages_dtype = backend.library.variant, self.query.shape[2], self.pages.key.dtype
        has_codes = pages_dtype == torch.int8 and head_dim % 64 == 0 and head_dim <= 512
        if has_codes and (variant.has_bf16 or variant == Variant.AVX2):
            return self._expected_of_bytes(**options)
        if not variant.has_bf16:
            return self.expected(**options), torch.zeros(())
        if pages_dtype == torch.float8_e4m3fn and head_dim % 64 == 0:
            return self._expected_of_bfloat16(**options)
        if pages_dtype == torch.bfloat16 and head_dim % 32 == 0:
            return self._expected_of_bfloat16(**options)
        return self.expected(**options), torch.zeros(())

    def _expected_of_bfloat16(self, **options: float | int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """A weight and the sum of weights are off by half a unit in the last place each, 2^-9 of themselves: together
        by no more than 2^-8 of the weighted mean of magnitudes.
        """
        pages = self.pages
        value = pages.value.float().abs().to(pages.value.dtype)
        rounded = self.query.bfloat16().to(self.query.dtype)
        sizes = self._expected(rounded, replace(pages, value=value), **options)
        return self._expected(rounded, pages, **options), sizes * 2**-8

    def _expected_of_bytes(self, **options: float | int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries have 32,639 steps up to their largest element, weights 65,535 up to the largest of 64 keys, times the
        scales of their values: half a step of 64 keys is at most 2^-11 of the weighted mean of the rows' largest codes.
        """
        query = self.query.float()
        largest_element = query.abs().amax(dim=-1, keepdim=True)
        rounded = ((query * (32_639 / largest_element)).round() * (largest_element / 32_639)).double()
        largest = replace(self.pages, value=torch.full_like(self.pages.value, 127))
        sizes = self._expected(rounded, largest, **options)
        return self._expected(rounded, self.pages, **options), sizes * 2**-11

    def _expected(self, query: torch.Tensor, pages: KVPages, **options: float | int | None) -> torch.Tensor:
        options = {"scale": query.shape[2] ** -0.5, **options}
        metadata = self.metadata
        layout = (metadata.query_start_loc, metadata.seq_lens, metadata.block_table)
        return reference.paged_attention(query, pages, *layout, **options)


def poisoned_pages(shape: tuple[int, int, int, int], dtype: torch.dtype) -> KVPages:
    """Pages that read as NaN; int8 has no NaN, but its scales have."""
    fill = 127 if dtype == torch.int8 else float("nan")
    key, value = (torch.full(shape, fill, dtype=dtype) for _ in range(2))
    if not is_quantised(dtype):
        return KVPages(key, value)
    return KVPages(key, value, *(torch.full(shape[:3], float("nan")) for _ in range(2)))


def build_batch(
    lengths: list[tuple[int, int]],
    *,
    num_q_heads: int = 4,
    num_kv_heads: int = 1,
    head_dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    pages_dtype: torch.dtype | None = None,
    window: int | None = None,
    seed: int = 0,
) -> PagedBatch:
    """Random sequences over shuffled pages; NaN fills the null page, unused pages and tails, passed windows."""
    generator = torch.Generator().manual_seed(seed)
    blocks = [-(-total // block_size) for _, total in lengths]
    num_pages = sum(blocks) + 3
    page_ids = (1 + torch.randperm(num_pages - 1, generator=torch.Generator().manual_seed(seed + 1))).tolist()
    pages = poisoned_pages((num_pages, num_kv_heads, block_size, head_dim), pages_dtype or dtype)
    block_table = torch.zeros((len(lengths), max(blocks, default=0) + 1), dtype=torch.int32)
    slot_mapping: list[int] = []
    for sequence, (rows, total) in enumerate(lengths):
        keys = torch.randn((2, total, num_kv_heads, head_dim), generator=generator)
        first_visible = 0 if window is None else max(0, total - rows - window + 1)
        owned = [0] * (first_visible // block_size) + [
            page_ids.pop() for _ in range(first_visible // block_size, blocks[sequence])
        ]
        block_table[sequence, : len(owned)] = torch.tensor(owned, dtype=torch.int32)
        slots = [owned[p // block_size] * block_size + p % block_size for p in range(total)]
        visible = slice(first_visible, total)
        visible_slots = torch.tensor(slots[visible], dtype=torch.int64)
        TorchBackend().store_kv(keys[0, visible], keys[1, visible], pages, visible_slots)
        slot_mapping += slots[total - rows :]
    rows_of = torch.tensor([rows for rows, _ in lengths], dtype=torch.int32)
    metadata = AttentionMetadata(
        query_start_loc=torch.cat([torch.zeros(1, dtype=torch.int32), rows_of.cumsum(0, dtype=torch.int32)]),
        seq_lens=torch.tensor([total for _, total in lengths], dtype=torch.int32),
        block_table=block_table,
        slot_mapping=torch.tensor(slot_mapping, dtype=torch.int64),
        max_query_len=max((rows for rows, _ in lengths), default=0),
        max_seq_len=max((total for _, total in lengths), default=0),
    )
    query = torch.randn((len(slot_mapping), num_q_heads, head_dim), generator=generator).to(dtype)
    return PagedBatch(query, pages, metadata)


def native_backend(variant: Variant | None = None) -> NativeBackend:
    try:
        return NativeBackend(NativeLibrary(variant=variant))
    except LibraryError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["native", "torch"])
def backend(request: pytest.FixtureRequest) -> AttentionBackend:
    return native_backend() if request.param == "native" else TorchBackend()


@pytest.fixture
def native() -> NativeBackend:
    return native_backend()


@pytest.fixture
def native_variant() -> Callable[[Variant], NativeBackend]:
    return native_backend


@pytest.fixture
def batch_of() -> Callable[..., PagedBatch]:
    return build_batch


@pytest.fixture(params=list(Variant), ids=lambda variant: variant.name)
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    try:
        return NativeLibrary(variant=request.param)
    except LibraryError as error:
        pytest.skip(str(error))


@pytest.fixture(params=list(Variant), ids=lambda variant: variant.name)
def native_each_variant(request: pytest.FixtureRequest) -> NativeBackend:
    return native_backend(request.param)
