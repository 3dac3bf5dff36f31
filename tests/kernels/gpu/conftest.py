"""Run the Triton kernels on a GPU where there is one, and in Triton's interpreter on the CPU elsewhere.

Triton reads ``TRITON_INTERPRET`` when it is imported, when a kernel is decorated and when one is launched. So the
kernels are imported here with the variable set, and the tests of this folder run with it set; no other test sees it.
A test that needs compiled kernels without a GPU starts a process of its own (see ``tests/benchmarks/test_kernels.py``).
"""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import combinations, product, starmap
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import gpu, reference
from kernels.attention import AttentionMetadata, KVPages
from kernels.quantisation import is_quantised

ON_GPU = torch.cuda.is_available()


def _load_interpreted() -> None:
    if "triton" in sys.modules:
        raise RuntimeError("triton was imported before tests/kernels/gpu/conftest.py could ask for its interpreter")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        for module in pkgutil.iter_modules(gpu.__path__):
            importlib.import_module(f"kernels.gpu.{module.name}")
        spec = importlib.util.spec_from_file_location("triton_interpreter", Path(__file__).with_name("interpreter.py"))
        assert spec is not None
        assert spec.loader is not None
        interpreter = importlib.util.module_from_spec(spec)
        sys.modules["triton_interpreter"] = interpreter
        spec.loader.exec_module(interpreter)
        interpreter.install()
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
    sinks: torch.Tensor | None = None

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
            sinks=None if self.sinks is None else self.sinks.cpu(),
        )

    def check(self, output: torch.Tensor, softcap: float | None = None) -> None:
        torch.testing.assert_close(
            output.cpu().double(), self.expected(softcap), rtol=0, atol=TOLERANCE[self.query.dtype]
        )


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """One of the kinds of attention that together cover every pair of what a model and its pages may be."""

    head_dim: int
    group: int
    block_size: int
    dtype: torch.dtype
    pages_dtype: torch.dtype | None  # None: that of the query
    window: int | None
    softcap: float | None
    has_sinks: bool

    @property
    def batch_options(self) -> dict[str, Any]:
        return {
            "num_q_heads": 2 * self.group,
            "num_kv_heads": 2,
            "head_dim": self.head_dim,
            "block_size": self.block_size,
            "dtype": self.dtype,
            "pages_dtype": self.pages_dtype,
            "window": self.window,
            "has_sinks": self.has_sinks,
        }


KIND_CHOICES: dict[str, tuple[Any, ...]] = {
    "head_dim": (64, 96, 128, 256),
    "group": (1, 4, 8),
    "block_size": (16, 32, 64),
    "dtype": (torch.bfloat16, torch.float16, torch.float32),
    "pages_dtype": (None, torch.float16, torch.int8, torch.float8_e4m3fn),
    "window": (None, 24),
    "softcap": (None, 2.0),
    "has_sinks": (False, True),
}


def pairs_of(kind: AttentionKind) -> set[Any]:
    return set(combinations(((name, getattr(kind, name)) for name in KIND_CHOICES), 2))


@cache
def covering_kinds() -> list[AttentionKind]:
    """Few kinds with every pair of choices: each is, of all kinds, the first with the most pairs not yet seen."""
    pairs = {kind: pairs_of(kind) for kind in starmap(AttentionKind, product(*KIND_CHOICES.values()))}
    missing = set().union(*pairs.values())
    chosen = []
    while missing:
        chosen.append(max(pairs, key=lambda kind: len(pairs[kind] & missing)))
        missing -= pairs[chosen[-1]]
    return chosen


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        kinds = covering_kinds()
        names = ["-".join(str(getattr(kind, name)).removeprefix("torch.") for name in KIND_CHOICES) for kind in kinds]
        metafunc.parametrize("kind", kinds, ids=names)


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
        has_sinks: bool = False,
        shared: Sequence[tuple[Sequence[int], int]] = (),
        seed: int = 0,
    ) -> PagedBatch:
        """``shared``: rows of the batch, and the number of pages, all of them full, that these have in common."""
        generator = torch.Generator().manual_seed(seed)
        query_lens = [1] * len(seq_lens) if query_lens is None else query_lens
        table_width = max(-(-length // block_size) for length in seq_lens)
        num_pages = 1 + sum(-(-length // block_size) for length in seq_lens)
        pages = poisoned_pages((num_pages, num_kv_heads, block_size, head_dim), pages_dtype or dtype)
        shuffled = (1 + torch.randperm(num_pages - 1, generator=generator)).tolist()
        block_table = torch.zeros(len(seq_lens), table_width, dtype=torch.int32)
        for members, count in shared:
            common = [shuffled.pop() for _ in range(count)]
            block_table[list(members), :count] = torch.tensor(common, dtype=torch.int32)
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
        sinks = 2 * torch.randn(num_q_heads, generator=generator) if has_sinks else None
        metadata = AttentionMetadata(
            query_start_loc=starts.to(device),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=device),
            block_table=block_table.to(device),
            slot_mapping=torch.empty(0, dtype=torch.int64, device=device),
            max_query_len=max(query_lens),
            max_seq_len=max(seq_lens),
        )
        moved_sinks = None if sinks is None else sinks.to(device)
        return PagedBatch(query.to(device), to_device(pages, device), metadata, window, moved_sinks)

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
