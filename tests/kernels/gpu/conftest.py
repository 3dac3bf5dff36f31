"""Run the Triton kernels on a GPU where there is one, and in Triton's interpreter on the CPU elsewhere.

Triton reads ``TRITON_INTERPRET`` when it is imported, when a kernel is decorated and when one is launched. So the
kernels are imported here with the variable set, and the tests of this folder run with it set; no other test sees it.
A test that needs compiled kernels without a GPU starts a process of its own (see ``test_compile.py``).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import torch

from kernels import reference
from kernels.attention import AttentionMetadata, KVPages
from kernels.quantisation import is_quantised

ON_GPU = torch.cuda.is_available()


def _load_interpreted() -> None:
    if "triton" in sys.modules:
        raise RuntimeError("triton was imported before tests/kernels/gpu/conftest.py could ask for its interpreter")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        importlib.import_module("kernels.gpu.backend")
        spec = importlib.util.spec_from_file_location("triton_interpreter", Path(__file__).with_name("interpreter.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["triton_interpreter"] = module
        spec.loader.exec_module(module)
        module.install()
    finally:
        del os.environ["TRITON_INTERPRET"]


if not ON_GPU:
    _load_interpreted()


@pytest.fixture(autouse=True)
def interpreted_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    if not ON_GPU:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if ON_GPU else "cpu")


# Largest difference from float64 that rounding alone explains, for values near 1.
TOLERANCE = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def poisoned_pages(shape: tuple[int, int, int, int], dtype: torch.dtype) -> KVPages:
    """Pages that read as NaN; int8 has no NaN, but its scales have."""
    fill = 127 if dtype == torch.int8 else float("nan")
    key, value = (torch.full(shape, fill, dtype=dtype) for _ in range(2))
    if not is_quantised(dtype):
        return KVPages(key, value)
    return KVPages(key, value, *(torch.full(shape[:3], float("nan")) for _ in range(2)))


def to_device(pages: KVPages, device: torch.device) -> KVPages:
    moved = (getattr(pages, field.name) for field in fields(pages))
    return KVPages(*(None if tensor is None else tensor.to(device) for tensor in moved))


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """A step over pages where every slot that no row may see holds NaN, the null page included."""

    query: torch.Tensor
    pages: KVPages
    metadata: AttentionMetadata
    window: int | None

    @property
    def scale(self) -> float:
        return float(self.query.shape[-1] ** -0.5)

    def expected(self, softcap: float | None = None) -> torch.Tensor:
        return reference.paged_attention(
            self.query.cpu(),
            to_device(self.pages, torch.device("cpu")),
            self.metadata.query_start_loc.cpu(),
            self.metadata.seq_lens.cpu(),
            self.metadata.block_table.cpu(),
            scale=self.scale,
            window=self.window,
            softcap=softcap,
        )

    def check(self, output: torch.Tensor, softcap: float | None = None) -> None:
        torch.testing.assert_close(
            output.cpu().double(), self.expected(softcap), rtol=0, atol=TOLERANCE[self.query.dtype]
        )


MakeBatch = Callable[..., PagedBatch]


@pytest.fixture
def make_batch(device: torch.device) -> MakeBatch:
    def build(
        seq_lens: Sequence[int],
        query_lens: Sequence[int] | None = None,
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
        generator = torch.Generator().manual_seed(seed)
        query_lens = [1] * len(seq_lens) if query_lens is None else query_lens
        table_width = max(-(-length // block_size) for length in seq_lens)
        num_pages = 1 + sum(-(-length // block_size) for length in seq_lens)
        pages = poisoned_pages((num_pages, num_kv_heads, block_size, head_dim), pages_dtype or dtype)
        shuffled = (1 + torch.randperm(num_pages - 1, generator=generator)).tolist()
        block_table = torch.zeros(len(seq_lens), table_width, dtype=torch.int32)
        for sequence, (seq_len, query_len) in enumerate(zip(seq_lens, query_lens, strict=True)):
            first = 0 if window is None else max(0, seq_len - query_len - window + 1)
            for position in range(first if query_len else seq_len, seq_len):
                column, offset = divmod(position, block_size)
                if block_table[sequence, column] == 0:
                    block_table[sequence, column] = shuffled.pop()
                slot = torch.tensor([int(block_table[sequence, column]) * block_size + offset])
                key, value = torch.randn(2, 1, num_kv_heads, head_dim, generator=generator)
                reference.store_kv(key, value, pages, slot)
        starts = torch.tensor([0, *query_lens], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        query = torch.randn(sum(query_lens), num_q_heads, head_dim, generator=generator).to(dtype)
        metadata = AttentionMetadata(
            query_start_loc=starts.to(device),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=device),
            block_table=block_table.to(device),
            slot_mapping=torch.empty(0, dtype=torch.int64, device=device),
            max_query_len=max(query_lens),
            max_seq_len=max(seq_lens),
        )
        return PagedBatch(query.to(device), to_device(pages, device), metadata, window)

    return build


@pytest.fixture
def make_huge_pages(device: torch.device, tmp_path: Path) -> Callable[[], torch.Tensor]:
    """Float16 pages of 2**31 elements and a few more, on the CPU in a sparse file that takes no space until written."""

    def build(name: str = "pages") -> torch.Tensor:
        shape = (2**31 // (16 * 64) + 4, 1, 16, 64)
        if ON_GPU:
            return torch.zeros(shape, dtype=torch.float16, device=device)
        pages = shape[0] * shape[1] * shape[2] * shape[3]
        return torch.from_file(str(tmp_path / name), shared=True, size=pages, dtype=torch.float16).view(shape)

    return build
