"""The launches whose speed is measured on a GPU, and their rows in the table: kernels at the shapes of models.

Each row has the seconds of a launch, the rate that makes of the bytes or FLOPs in ``kernels.roofline``, and its share
of what the same GPU reaches in the same run: of its copy bandwidth, or of torch's own attention on dense tensors.
Shapes come from a ``Sizes``; a case that does not fit into memory says so in its row. Nothing here knows how time is
measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.gpu_timing import Timer, copies_past_caches
from kernels import roofline
from kernels.attention import AttentionMetadata, KVPages, SharedPrefix
from kernels.gpu.activations import Activation, gate
from kernels.gpu.backend import TritonBackend
from kernels.gpu.dense_gemm import dense_gemm
from kernels.gpu.moe_gemm import grouped_gemm
from kernels.gpu.norms import add_rms_norm
from kernels.gpu.quantised_gemm import QuantisedWeight, quantised_gemm
from kernels.gpu.rotary import rotate
from kernels.gpu.sampling import SamplingInputs, sample
from kernels.grouping import Grouping
from kernels.quantisation import is_quantised
from kernels.roofline import AttentionShape, Cost

BLOCK_SIZE = 16


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is measured. ``pool_bytes`` bounds the pages of the attention cases.

    ``sharing``: how many sequences share a prefix, its tokens, and the tokens that each has after it.
    """

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[int, ...]
    sharing: tuple[int, int, int]
    num_tokens: int
    hidden: int
    vocab_size: int
    rows: int
    heads: tuple[int, int]
    head_dim: int
    pool_bytes: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement. ``share`` is of ``reference``, 0 to 1 and beyond; None where nothing was measured."""

    kernel: str
    setting: str
    microseconds: float | None
    rate: float | None
    unit: str
    share: float | None
    reference: str
    target: float | None
    note: str = ""


@dataclass(frozen=True)
class Bench:
    """A GPU under measurement: its clock, and what it reaches. ``bandwidth`` in bytes/s, ``matrix`` in FLOP/s."""

    timer: Timer
    device: torch.device
    sizes: Sizes
    bandwidth: float
    matrix: float

    def moved(
        self, kernel: str, setting: str, cost: Cost, launches: list[Callable[[], object]], target: float | None = None
    ) -> Row:
        """A row for what is bound by memory."""
        seconds = self.timer(launches)
        rate = cost.bytes / seconds
        return Row(
            kernel=kernel,
            setting=setting,
            microseconds=seconds * 1e6,
            rate=rate / 1e9,
            unit="GB/s",
            share=rate / self.bandwidth,
            reference="copy",
            target=target,
        )


def row_parts(bench: Bench) -> Iterator[tuple[str, Iterator[Row]]]:
    """Every row of the table, in order, by parts of which one may fail without the others; each with its name."""
    dtypes = [torch.bfloat16]
    if bench.device.type == "cuda" and torch.version.hip is None:
        dtypes += [torch.float8_e4m3fn] if torch.cuda.get_device_capability(bench.device) >= (8, 9) else []
    for pages_dtype in (*dtypes, torch.int8):
        yield f"decode, {str(pages_dtype).removeprefix('torch.')} pages", decode_rows(bench, pages_dtype)
    for prompt in bench.sizes.prompts:
        yield f"prefill, {prompt} tokens", prefill_rows(bench, prompt)
    yield "storing, norms and activations", memory_rows(bench)
    yield "sampling", sampling_rows(bench)
    yield "cascade", sharing_rows(bench)
    yield "products", product_rows(bench)


def make_pages(sizes: Sizes, num_pages: int, dtype: torch.dtype, device: torch.device) -> KVPages:
    """Pages full of numbers near 1."""
    shape = (num_pages, sizes.heads[1], BLOCK_SIZE, sizes.head_dim)
    if not is_quantised(dtype):
        key, value = (torch.empty(shape, dtype=dtype, device=device).normal_() for _ in range(2))
        return KVPages(key, value)
    # bytes below 0x40 are at most 2 in fp8 and 63 in int8
    codes = (torch.randint(0, 0x40, shape, dtype=torch.uint8, device=device).view(dtype) for _ in range(2))
    return KVPages(*codes, *(torch.full(shape[:3], 1 / 64, device=device) for _ in range(2)))


def decode_rows(bench: Bench, pages_dtype: torch.dtype) -> Iterator[Row]:
    """One token of each sequence over its context, pages in random order."""
    sizes, device = bench.sizes, bench.device
    num_q_heads, num_kv_heads = sizes.heads
    shape = AttentionShape(num_q_heads, num_kv_heads, sizes.head_dim, page_bytes=pages_dtype.itemsize)
    page_bytes = shape.stored_bytes * BLOCK_SIZE
    most_pages = max(sizes.batches) * (-(-max(sizes.contexts) // BLOCK_SIZE))
    num_pages = min(most_pages, sizes.pool_bytes // page_bytes)
    pages = make_pages(sizes, num_pages, pages_dtype, device)
    shuffled = torch.randperm(num_pages, device=device).to(torch.int32)
    backend = TritonBackend()
    for context in sizes.contexts:
        for batch in sizes.batches:
            name = f"batch {batch}, context {context}, {str(pages_dtype).removeprefix('torch.')} pages"
            width = -(-context // BLOCK_SIZE)
            copies = min(copies_past_caches(batch * context * shape.stored_bytes), num_pages // (batch * width))
            if copies == 0:
                yield _left_out("decode", name, f"needs {batch * width * page_bytes / 2**30:.0f} GiB of pages")
                continue
            launches = []
            for copy in range(copies):
                table = shuffled[copy * batch * width :][: batch * width].view(batch, width)
                metadata = _metadata([1] * batch, [context] * batch, table, device)
                query = torch.randn(batch, num_q_heads, sizes.head_dim, device=device).to(torch.bfloat16)
                launches.append(_attend(backend, query, pages, metadata))
            target = 0.70 if batch == 1 and context <= 1024 else 0.85
            yield bench.moved("decode", name, roofline.decode(shape, [context] * batch), launches, target)


def sharing_rows(bench: Bench) -> Iterator[Row]:
    """Decodes with a common prefix, each over its own table and the prefix read once, and what the latter saves.

    The last row holds the time that is saved against the bytes that are not read. Well above the copy bandwidth, the
    caches had them, and ``kernels.gpu.sharing_cost`` expects too much of sharing.
    """
    sizes, device = bench.sizes, bench.device
    num_q_heads, num_kv_heads = sizes.heads
    batch, prefix_len, own_len = sizes.sharing
    shape = AttentionShape(num_q_heads, num_kv_heads, sizes.head_dim)
    alone = roofline.decode(shape, [prefix_len + own_len] * batch)
    together = roofline.cascade(shape, prefix_len, [own_len] * batch)
    common, own = prefix_len // BLOCK_SIZE, -(-own_len // BLOCK_SIZE)
    num_pages = common + batch * own
    copies = min(copies_past_caches(together.bytes), sizes.pool_bytes // (num_pages * BLOCK_SIZE * shape.stored_bytes))
    name = f"batch {batch}, {prefix_len} shared, {own_len} own"
    if copies == 0:
        yield _left_out("cascade", name, f"needs {num_pages} pages")
        return
    pages = make_pages(sizes, copies * num_pages, torch.bfloat16, device)
    lens = torch.full((batch,), prefix_len, dtype=torch.int32, device=device)
    members = torch.arange(batch, dtype=torch.int32, device=device)
    starts = torch.tensor([0, batch], dtype=torch.int32, device=device)
    prefix = SharedPrefix(members, starts, lens, batch, prefix_len, own_len)
    launches: list[list[Callable[[], object]]] = [[], []]
    for shuffled in torch.randperm(copies * num_pages, device=device).to(torch.int32).view(copies, num_pages):
        table = torch.cat([shuffled[:common].expand(batch, -1), shuffled[common:].view(batch, own)], dim=1)
        metadata = _metadata([1] * batch, [prefix_len + own_len] * batch, table, device)
        query = torch.randn(batch, num_q_heads, sizes.head_dim, device=device).to(torch.bfloat16)
        for ours, given in zip(launches, (metadata, replace(metadata, shared_prefix=prefix)), strict=True):
            ours.append(_attend(TritonBackend(), query, pages, given))
    rows = [
        bench.moved("decode", name, alone, launches[0]),
        bench.moved("cascade", name, together, launches[1]),
    ]
    yield from rows
    plain, shared = (row.microseconds or 0.0 for row in rows)
    if plain <= shared:
        yield _left_out("cascade, saved", name, "nothing: it takes longer")
        return
    rate = (alone.bytes - together.bytes) / (plain - shared) * 1e6
    yield replace(
        rows[1],
        kernel="cascade, saved",
        microseconds=plain - shared,
        rate=rate / 1e9,
        share=rate / bench.bandwidth,
    )


def prefill_rows(bench: Bench, prompt: int) -> Iterator[Row]:
    """A whole prompt over its own pages, beside torch's causal attention on dense tensors."""
    sizes, device = bench.sizes, bench.device
    num_q_heads, num_kv_heads = sizes.heads
    shape = AttentionShape(num_q_heads, num_kv_heads, sizes.head_dim)
    cost = roofline.prefill(shape, [prompt], [prompt])
    width = -(-prompt // BLOCK_SIZE)
    pages = make_pages(sizes, width, torch.bfloat16, device)
    table = torch.randperm(width, device=device).to(torch.int32)[None]
    query = torch.randn(prompt, num_q_heads, sizes.head_dim, device=device).to(torch.bfloat16)
    metadata = _metadata([prompt], [prompt], table, device)
    ours = bench.timer([_attend(TritonBackend(), query, pages, metadata)])

    dense_query = query.transpose(0, 1)[None].contiguous()
    dense_key, dense_value = (
        torch.randn(1, num_kv_heads, prompt, sizes.head_dim, device=device).to(torch.bfloat16) for _ in range(2)
    )

    def dense() -> object:
        return F.scaled_dot_product_attention(dense_query, dense_key, dense_value, is_causal=True, enable_gqa=True)

    theirs = bench.timer([dense])
    for kernel, seconds, share, reference, target in (
        ("prefill", ours, theirs / ours, "torch SDPA", 0.75),
        ("prefill", ours, cost.flops / ours / bench.matrix, "bf16 product", None),
        ("torch SDPA", theirs, cost.flops / theirs / bench.matrix, "bf16 product", None),
    ):
        yield Row(
            kernel=kernel,
            setting=f"{prompt} tokens",
            microseconds=seconds * 1e6,
            rate=cost.flops / seconds / 1e12,
            unit="TFLOP/s",
            share=share,
            reference=reference,
            target=target,
        )


def memory_rows(bench: Bench) -> Iterator[Row]:
    """Kernels that only move memory, at a step of many tokens."""
    sizes, device, num_tokens = bench.sizes, bench.device, bench.sizes.num_tokens
    num_q_heads, num_kv_heads = sizes.heads
    for pages_dtype in (torch.bfloat16, torch.int8):
        shape = AttentionShape(num_q_heads, num_kv_heads, sizes.head_dim, page_bytes=pages_dtype.itemsize)
        pages = make_pages(sizes, -(-num_tokens // BLOCK_SIZE), pages_dtype, device)
        slots = torch.randperm(num_tokens, device=device)
        key, value = torch.randn(2, num_tokens, num_kv_heads, sizes.head_dim, device=device).to(torch.bfloat16)
        yield bench.moved(
            "store_kv",
            f"{num_tokens} tokens, {str(pages_dtype).removeprefix('torch.')} pages",
            roofline.store_kv(shape, num_tokens),
            [_store(key, value, pages, slots)],
        )
    x, residual = torch.randn(2, num_tokens, sizes.hidden, device=device).to(torch.bfloat16)
    weight = torch.ones(sizes.hidden, device=device)
    setting = f"{num_tokens} x {sizes.hidden}"
    cost = roofline.rms_norm(num_tokens, sizes.hidden, has_residual=True)
    yield bench.moved("add_rms_norm", setting, cost, [lambda: add_rms_norm(x, residual, weight, 1e-5)])
    heads = torch.randn(num_tokens, num_q_heads, sizes.head_dim, device=device).to(torch.bfloat16)
    cos, sin = torch.rand(2, num_tokens, sizes.head_dim // 2, device=device)
    cost = roofline.rotate(num_tokens, num_q_heads, sizes.head_dim, sizes.head_dim)
    setting = f"{num_tokens} x {num_q_heads} heads"
    yield bench.moved("rotary", setting, cost, [lambda: rotate(heads, cos, sin)])
    gate_up = torch.randn(num_tokens, 2 * sizes.hidden, device=device).to(torch.bfloat16)
    cost = roofline.gate(num_tokens, sizes.hidden)
    setting = f"{num_tokens} x {sizes.hidden}"
    yield bench.moved("swiglu", setting, cost, [lambda: gate(gate_up, Activation.SILU)])


def sampling_rows(bench: Bench) -> Iterator[Row]:
    """A token for every row of a batch, by rows of one kind of parameters."""
    sizes, device = bench.sizes, bench.device
    logits = 3 * torch.randn(sizes.rows, sizes.vocab_size, device=device)
    for name, (temperature, top_k, top_p, min_p) in {
        "greedy": (0.0, 0, 1.0, 0.0),
        "no filter": (1.0, 0, 1.0, 0.0),
        "top-k 50": (1.0, 50, 1.0, 0.0),
        "top-p 0.9, temperature 0.6": (0.6, 0, 0.9, 0.0),
        "min-p 0.05": (1.0, 0, 1.0, 0.05),
    }.items():
        inputs = SamplingInputs(
            temperature=torch.full((sizes.rows,), temperature, device=device),
            top_k=torch.full((sizes.rows,), top_k, dtype=torch.int32, device=device),
            top_p=torch.full((sizes.rows,), top_p, device=device),
            min_p=torch.full((sizes.rows,), min_p, device=device),
            seed=torch.arange(sizes.rows, device=device),
            output_index=torch.arange(sizes.rows, device=device),
        )
        setting = f"{sizes.rows} x {sizes.vocab_size}, {name}"
        yield bench.moved("sample", setting, roofline.sample(sizes.rows, sizes.vocab_size), [_sample(logits, inputs)])


def product_rows(bench: Bench) -> Iterator[Row]:
    """Weights that are read for one row, which is bound by memory: of codes, and of eight experts."""
    device, hidden = bench.device, bench.sizes.hidden
    weight = torch.randn(hidden, hidden, device=device) / hidden**0.5
    x = torch.randn(1, hidden, device=device).to(torch.bfloat16)
    for bits, quantised in ((8, QuantisedWeight.int8(weight)), (4, QuantisedWeight.int4(weight))):
        cost = roofline.quantised_gemm(1, hidden, hidden, bits=bits, group=quantised.group)
        copies = [
            QuantisedWeight(quantised.codes.clone(), quantised.scales, quantised.group)
            for _ in range(copies_past_caches(cost.bytes))
        ]
        launches = [_multiply(x, copy) for copy in copies]
        yield bench.moved(f"int{bits}_gemm", f"1 x {hidden} x {hidden}", cost, launches)
    yield from dense_rows(bench)
    experts = torch.randn(8, hidden, hidden, device=device).to(torch.bfloat16)
    rows = torch.randn(8, hidden, device=device).to(torch.bfloat16)
    grouping = Grouping.by_expert(torch.arange(8, device=device)[:, None], 8)
    cost = roofline.grouped_gemm([1] * 8, hidden, hidden)
    setting = f"8 experts x 1 x {hidden} x {hidden}"
    yield bench.moved("grouped_gemm", setting, cost, [lambda: grouped_gemm(rows, experts, grouping.offsets)])


def dense_rows(bench: Bench) -> Iterator[Row]:
    """The deterministic product of float weights beside the library's, for one row and for many."""
    device, hidden = bench.device, bench.sizes.hidden
    for num_rows in (1, bench.sizes.rows, bench.sizes.num_tokens):
        for out_features in (hidden, 4 * hidden):  # narrow and wide
            cost = roofline.gemm(num_rows, out_features, hidden)
            x = torch.randn(num_rows, hidden, device=device).to(torch.bfloat16)
            weights = [
                torch.randn(out_features, hidden, device=device).to(torch.bfloat16)
                for _ in range(copies_past_caches(cost.bytes))
            ]
            ours = bench.timer([partial(dense_gemm, x, weight) for weight in weights])
            theirs = bench.timer([partial(F.linear, x, weight) for weight in weights])
            yield Row(
                kernel="dense_gemm",
                setting=f"{num_rows} x {hidden} x {out_features}",
                microseconds=ours * 1e6,
                rate=cost.flops / ours / 1e12,
                unit="TFLOP/s",
                share=theirs / ours,
                reference="torch's product",
                target=None,
            )


def _metadata(
    query_lens: list[int], seq_lens: list[int], table: torch.Tensor, device: torch.device
) -> AttentionMetadata:
    starts = torch.tensor([0, *query_lens], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return AttentionMetadata(
        query_start_loc=starts.to(device),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=device),
        block_table=table.contiguous(),
        slot_mapping=torch.empty(0, dtype=torch.int64, device=device),
        max_query_len=max(query_lens),
        max_seq_len=max(seq_lens),
    )


def _attend(
    backend: TritonBackend, query: torch.Tensor, pages: KVPages, metadata: AttentionMetadata
) -> Callable[[], object]:
    return lambda: backend.attend(query, pages, metadata, scale=query.shape[-1] ** -0.5)


def _store(key: torch.Tensor, value: torch.Tensor, pages: KVPages, slots: torch.Tensor) -> Callable[[], object]:
    return lambda: TritonBackend().store_kv(key, value, pages, slots)


def _sample(logits: torch.Tensor, inputs: SamplingInputs) -> Callable[[], object]:
    return lambda: sample(logits, inputs)


def _multiply(x: torch.Tensor, weight: QuantisedWeight) -> Callable[[], object]:
    return lambda: quantised_gemm(x, weight)


def _left_out(kernel: str, setting: str, note: str) -> Row:
    return Row(
        kernel=kernel,
        setting=setting,
        microseconds=None,
        rate=None,
        unit="",
        share=None,
        reference="",
        target=None,
        note=note,
    )
