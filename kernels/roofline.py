"""What a kernel must move and multiply at least, and the shortest time a GPU's data sheet allows for it.

Plain arithmetic on shapes: no tensors, no device, no measurement. Bytes count what has to cross the memory bus once:
inputs read once, outputs written once, weights and pages that several programs share once; block tables, lengths and
other integers are left out. FLOPs count products and sums of matrix products, two per pair. A measured time divided by
the floor says how far a kernel is from what the memory or the matrix units allow, whichever is slower.

Data sheets (dense rates, without sparsity, decimal units):

    A100    NVIDIA A100 Tensor Core GPU datasheet, A100 80GB SXM
    H100    NVIDIA H100 Tensor Core GPU datasheet, H100 SXM
    H200    NVIDIA H200 Tensor Core GPU datasheet, H200 SXM
    MI300X  AMD Instinct MI300X Accelerator data sheet
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes across the memory bus, and FLOPs on the matrix units; costs of a sequence of kernels add up."""

    bytes: int
    flops: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.bytes + other.bytes, self.flops + other.flops)


@dataclass(frozen=True, slots=True)
class DataSheet:
    """A GPU's memory bandwidth in bytes/s, and its FLOP/s for operands of 16 and of 8 bits."""

    name: str
    bandwidth: float
    flops_16_bit: float
    flops_8_bit: float

    def floor_seconds(self, cost: Cost, *, operand_bytes: int = 2) -> float:
        """The longer of moving the bytes and of doing the FLOPs."""
        rate = self.flops_8_bit if operand_bytes == 1 else self.flops_16_bit
        return max(cost.bytes / self.bandwidth, cost.flops / rate)


A100 = DataSheet("A100", bandwidth=2.039e12, flops_16_bit=312e12, flops_8_bit=624e12)
H100 = DataSheet("H100", bandwidth=3.35e12, flops_16_bit=989.5e12, flops_8_bit=1979e12)
H200 = DataSheet("H200", bandwidth=4.8e12, flops_16_bit=989.5e12, flops_8_bit=1979e12)
MI300X = DataSheet("MI300X", bandwidth=5.3e12, flops_16_bit=1307.4e12, flops_8_bit=2614.9e12)
DATA_SHEETS = (A100, H100, H200, MI300X)
FASTEST = max(DATA_SHEETS, key=lambda sheet: sheet.bandwidth)


def sheet_of(device_name: str) -> DataSheet | None:
    """The data sheet of a GPU by the name that its driver gives it; None for one that has none here."""
    return next((sheet for sheet in DATA_SHEETS if sheet.name in device_name), None)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One layer. ``page_bytes`` is the size of an element in pages; one byte comes with float32 scales per row."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    dtype_bytes: int = 2
    page_bytes: int = 2

    @property
    def row_bytes(self) -> int:
        """A token's query, or its output, of all heads."""
        return self.num_q_heads * self.head_dim * self.dtype_bytes

    @property
    def stored_bytes(self) -> int:
        """A token's key and value in their pages, scales included."""
        scale = 4 if self.page_bytes == 1 else 0
        return 2 * self.num_kv_heads * (self.head_dim * self.page_bytes + scale)

    def flops(self, pairs: int) -> int:
        """Scores and mixing for so many pairs of a query row and a key it sees, in all query heads."""
        return 4 * self.num_q_heads * self.head_dim * pairs


def store_kv(shape: AttentionShape, num_tokens: int) -> Cost:
    """Read new keys and values, write them to their slots."""
    return Cost(num_tokens * (2 * shape.num_kv_heads * shape.head_dim * shape.dtype_bytes + shape.stored_bytes))


def decode(shape: AttentionShape, seq_lens: Iterable[int], window: int | None = None) -> Cost:
    """One query row per sequence over what it sees; each sequence's pages are its own."""
    seen = [length if window is None else min(length, window) for length in seq_lens]
    return Cost(len(seen) * 2 * shape.row_bytes + sum(seen) * shape.stored_bytes, shape.flops(sum(seen)))


def cascade(shape: AttentionShape, prefix_len: int, suffix_lens: Iterable[int]) -> Cost:
    """Decodes that share the pages of a prefix, which cross the bus once."""
    suffixes = list(suffix_lens)
    stored = (prefix_len + sum(suffixes)) * shape.stored_bytes
    pairs = len(suffixes) * prefix_len + sum(suffixes)
    return Cost(len(suffixes) * 2 * shape.row_bytes + stored, shape.flops(pairs))


def reduce(shape: AttentionShape, num_seqs: int, num_splits: int) -> Cost:
    """Read float32 partial rows and their log-sum-exp, write merged rows."""
    partial = num_seqs * num_splits * shape.num_q_heads * (shape.head_dim + 1) * 4
    return Cost(partial + num_seqs * shape.row_bytes)


def prefill(
    shape: AttentionShape, query_lens: Iterable[int], seq_lens: Iterable[int], window: int | None = None
) -> Cost:
    """The last ``query_len`` rows of each sequence, causally over all before them, history included."""
    total = Cost(0)
    for query_len, seq_len in zip(query_lens, seq_lens, strict=True):
        rows = range(seq_len - query_len + 1, seq_len + 1)
        pairs = sum(rows) if window is None else sum(min(row, window) for row in rows)
        seen = seq_len if window is None or not query_len else min(seq_len, query_len + window - 1)
        total += Cost(
            query_len * 2 * shape.row_bytes + (seen * shape.stored_bytes if query_len else 0), shape.flops(pairs)
        )
    return total


def rms_norm(num_rows: int, size: int, *, dtype_bytes: int = 2, has_residual: bool = False) -> Cost:
    """Rows in and out, twice where a residual is added, and one float32 weight."""
    return Cost(num_rows * size * dtype_bytes * (4 if has_residual else 2) + size * 4)


def rotate(num_tokens: int, num_heads: int, head_dim: int, rotary_dim: int, *, dtype_bytes: int = 2) -> Cost:
    """Heads in and out, and a token's cosines and sines in float32."""
    return Cost(num_tokens * (2 * num_heads * head_dim * dtype_bytes + rotary_dim * 4))


def gate(num_tokens: int, size: int, *, dtype_bytes: int = 2) -> Cost:
    """Gate and up in, one row out."""
    return Cost(num_tokens * 3 * size * dtype_bytes)


def sample(num_rows: int, vocab_size: int, *, dtype_bytes: int = 4) -> Cost:
    """Every logit once, and a token out."""
    return Cost(num_rows * (vocab_size * dtype_bytes + 8))


def gemm(num_rows: int, out_features: int, in_features: int, *, dtype_bytes: int = 2) -> Cost:
    """A dense product with a weight of the same dtype."""
    moved = num_rows * (in_features + out_features) + out_features * in_features
    return Cost(moved * dtype_bytes, 2 * num_rows * out_features * in_features)


def grouped_gemm(rows_of_experts: Iterable[int], out_features: int, in_features: int, *, dtype_bytes: int = 2) -> Cost:
    """The weights of experts that own rows, and their rows in and out."""
    costs = (gemm(rows, out_features, in_features, dtype_bytes=dtype_bytes) for rows in rows_of_experts if rows)
    return sum(costs, Cost(0))


def quantised_gemm(
    num_rows: int, out_features: int, in_features: int, *, bits: int, group: int = 0, dtype_bytes: int = 2
) -> Cost:
    """Codes of ``bits``, a float32 scale per output and group (one where ``group`` is 0), rows in and out."""
    codes = out_features * in_features * bits // 8
    scales = out_features * (in_features // group if group else 1) * 4
    rows = num_rows * (in_features + out_features) * dtype_bytes
    return Cost(codes + scales + rows, 2 * num_rows * out_features * in_features)
