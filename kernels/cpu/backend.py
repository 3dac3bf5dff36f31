"""Attention backends for CPU tensors: the native library, and plain torch operations where it is missing.

Both implement ``kernels.attention.AttentionBackend`` and keep nothing between calls. The native backend reads pages in
place and gives every query row the same bits whatever the batch, the thread count or the chunking of its prefill. The
torch backend gathers each sequence's visible pages anew in every call.
"""

from __future__ import annotations

import numpy as np
import torch

from kernels.attention import AttentionMetadata, KVPages, Preparation
from kernels.composed import add_normed, gated, normed, normed_sum, prepared
from kernels.cpu.dense_product import NativeDense
from kernels.cpu.layer_replay import LayerReplay
from kernels.cpu.library import AddCall, AttendCall, NativeLibrary, StoreCall
from kernels.cpu.quantised_matrix import NativeKernels
from kernels.quantisation import SCALE_DTYPE, dequantise, is_quantised, quantise

_DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_PAGE_DTYPE_CODES = {**_DTYPE_CODES, torch.int8: 3, torch.float8_e4m3fn: 4}


class NativeBackend:
    """Paged attention in C++: float32, bfloat16 and float16 tensors, pages of these and of int8 and fp8, in any mix.

    Head rows must be contiguous; tokens and pages may be strided, so slices of a fused projection need no copy.
    """

    name = "cpu-native"
    expert_product = None

    def __init__(self, library: NativeLibrary, *, is_deterministic: bool = False) -> None:
        """``is_deterministic``: no products whose bits change where a batch is large; attention never has any."""
        self.library = library
        dense_product = NativeDense(library)
        is_left_out = is_deterministic and not dense_product.keeps_bits
        self.dense_product: NativeDense | None = None if is_left_out else dense_product
        self.min_rows = 2 if is_deterministic else 1  # oneDNN adds up a lone row in another order
        self.layer_replay: LayerReplay | None = LayerReplay(library)

    @property
    def weight_kernels(self) -> NativeKernels:
        """Of the library."""
        return NativeKernels(self.library)

    def store_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        pages: KVPages,
        slot_mapping: torch.Tensor,
    ) -> None:
        self.library.store_kv(self._store_call(key, value, pages, slot_mapping), key, value)

    def prepare_and_store(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        pages: KVPages,
        slot_mapping: torch.Tensor,
        preparation: Preparation,
    ) -> None:
        call = self._store_call(key, value, pages, slot_mapping)
        if query.dtype != key.dtype or query.shape[::2] != key.shape[::2]:
            raise ValueError(f"query {_describe(query)} must be like key {_describe(key)}")
        call.query, call.query_stride = query.data_ptr(), _token_stride("query", query)
        call.num_q_heads = query.shape[1]
        call.eps = preparation.eps
        head_dim = query.shape[2]
        call.query_norm = _row_pointer("query_norm", preparation.query_norm, head_dim)
        call.key_norm = _row_pointer("key_norm", preparation.key_norm, head_dim)
        if preparation.rotation is not None:
            cosines, sines = preparation.rotation
            call.pairs = cosines.shape[-1]
            if 2 * call.pairs > head_dim:
                raise ValueError(f"cosines {_describe(cosines)} turn more pairs than heads of {head_dim} have")
            call.cosines = _row_pointer("cosines", cosines, key.shape[0] * call.pairs)
            call.sines = _row_pointer("sines", sines, key.shape[0] * call.pairs)
        self.library.store_kv(call, query, key, value)

    def rotation(self, positions: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return _rotation(positions, frequencies)

    def normed(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return normed(x, weight, eps)

    def normed_sum(
        self, x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return normed_sum(x, branch, weight, eps)

    def gated(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        return gated(gate_up, activation)

    def add(self, x: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
        return self._added(x, branch, None, 0.0)

    def add_normed(self, x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return self._added(x, branch, _row_pointer("weight", weight, x.shape[1]), eps)

    def _added(self, x: torch.Tensor, branch: torch.Tensor, weight: int | None, eps: float) -> torch.Tensor:
        if x.shape != branch.shape or x.dtype != branch.dtype or not (x.is_contiguous() and branch.is_contiguous()):
            raise ValueError(f"x {_describe(x)} and branch {_describe(branch)} must be contiguous and alike")
        call = AddCall(x.data_ptr(), branch.data_ptr(), _dtype_code("x", x), *x.shape, weight, eps)
        self.library.run(self.library.handle.octavo_add_normed, call, x, branch)
        return x

    def _store_call(
        self, key: torch.Tensor, value: torch.Tensor, pages: KVPages, slot_mapping: torch.Tensor
    ) -> StoreCall:
        num_pages, num_kv_heads, block_size, head_dim = _check_pages(pages)
        num_tokens = key.shape[0]
        if key.shape != (num_tokens, num_kv_heads, head_dim) or value.shape != key.shape or value.dtype != key.dtype:
            raise ValueError(
                f"key {_describe(key)} and value {_describe(value)} must both be "
                f"[tokens, {num_kv_heads}, {head_dim}] of one dtype, to fit pages {_describe(pages.key)}"
            )
        _check_integers("slot_mapping", slot_mapping, torch.int64, (num_tokens,))
        return StoreCall(
            key.data_ptr(),
            value.data_ptr(),
            _token_stride("key", key),
            _token_stride("value", value),
            _dtype_code("key", key),
            *_page_arguments(pages),
            slot_mapping.data_ptr(),
            num_pages,
            num_tokens,
            num_kv_heads,
            head_dim,
            block_size,
        )

    def attend(
        self,
        query: torch.Tensor,
        pages: KVPages,
        metadata: AttentionMetadata,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        num_pages, num_kv_heads, block_size, head_dim = _check_pages(pages)
        num_tokens, num_q_heads, query_dim = query.shape
        if query_dim != head_dim or num_q_heads % num_kv_heads:
            raise ValueError(f"query {_describe(query)} does not fit pages {_describe(pages.key)}")
        if scale <= 0 or (window is not None and window < 1) or (softcap is not None and softcap <= 0):
            raise ValueError(f"scale {scale}, window {window} and softcap {softcap} must be positive (or None)")
        seq_lens, block_table = metadata.seq_lens, metadata.block_table
        num_seqs, max_blocks = block_table.shape
        _check_integers("query_start_loc", metadata.query_start_loc, torch.int32, (num_seqs + 1,))
        _check_integers("seq_lens", seq_lens, torch.int32, (num_seqs,))
        if block_table.dtype != torch.int32 or (max_blocks > 1 and block_table.stride(1) != 1):
            raise ValueError(f"block_table {_describe(block_table)} must be int32 with contiguous rows")
        sinks = None if sinks is None else sinks.float().contiguous()
        output = torch.empty((num_tokens, num_q_heads, head_dim), dtype=query.dtype)
        call = AttendCall(
            query.data_ptr(),
            _token_stride("query", query),
            _dtype_code("query", query),
            output.data_ptr(),
            *_page_arguments(pages),
            num_pages,
            metadata.query_start_loc.data_ptr(),
            seq_lens.data_ptr(),
            block_table.data_ptr(),
            block_table.stride(0),
            max_blocks,
            num_tokens,
            num_seqs,
            num_q_heads,
            num_kv_heads,
            head_dim,
            block_size,
            window or 0,
            scale,
            softcap or 0.0,
            _row_pointer("sinks", sinks, num_q_heads),
        )
        self.library.attend(call, query, output, *(() if sinks is None else (sinks,)))
        return output


class TorchBackend:
    """The fallback: per sequence, gather the visible pages, then matmul and softmax in float32."""

    name = "cpu-torch"
    dense_product = None
    expert_product = None
    min_rows = 1
    weight_kernels = None
    layer_replay = None

    def store_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        pages: KVPages,
        slot_mapping: torch.Tensor,
    ) -> None:
        kept = (slot_mapping >= 0).nonzero().flatten()
        slots = slot_mapping[kept]
        page_ids, offsets = slots // pages.key.shape[2], slots % pages.key.shape[2]
        for rows, stored, scales in (
            (key[kept], pages.key, pages.key_scales),
            (value[kept], pages.value, pages.value_scales),
        ):
            if scales is None:
                stored[page_ids, :, offsets] = rows.to(stored.dtype)
            else:
                stored[page_ids, :, offsets], scales[page_ids, :, offsets] = quantise(rows, stored.dtype)

    def prepare_and_store(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        pages: KVPages,
        slot_mapping: torch.Tensor,
        preparation: Preparation,
    ) -> None:
        query.copy_(prepared(query, preparation.query_norm, preparation))
        self.store_kv(prepared(key, preparation.key_norm, preparation), value, pages, slot_mapping)

    def rotation(self, positions: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return _rotation(positions, frequencies)

    def normed(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return normed(x, weight, eps)

    def normed_sum(
        self, x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return normed_sum(x, branch, weight, eps)

    def gated(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        return gated(gate_up, activation)

    def add(self, x: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
        return x + branch

    def add_normed(self, x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return add_normed(x, branch, weight, eps)

    def attend(
        self,
        query: torch.Tensor,
        pages: KVPages,
        metadata: AttentionMetadata,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        output = torch.zeros(query.shape, dtype=query.dtype)
        block_size = pages.key.shape[2]
        starts = metadata.query_start_loc.tolist()
        for sequence, seq_len in enumerate(metadata.seq_lens.tolist()):
            start, end = starts[sequence], starts[sequence + 1]
            if start == end or seq_len == 0:
                continue
            first_row = seq_len - (end - start)
            first_block = 0 if window is None else max(0, first_row - window + 1) // block_size
            table = metadata.block_table[sequence, first_block : (seq_len - 1) // block_size + 1]
            keys = _gather(pages.key, pages.key_scales, table, seq_len - first_block * block_size)
            values = _gather(pages.value, pages.value_scales, table, seq_len - first_block * block_size)
            positions = torch.arange(first_row, seq_len)[:, None]
            distance = positions - torch.arange(first_block * block_size, seq_len)[None, :]
            hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
            rows = (
                query[start:end].float().reshape(end - start, keys.shape[0], -1, keys.shape[2])
            )  # [.., kv_heads, group, ..]
            scores = torch.einsum("rhgd,hkd->hgrk", rows, keys) * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            scores = scores.masked_fill_(hidden, float("-inf"))
            if sinks is not None:
                columns = sinks.float().reshape(*scores.shape[:2], 1, 1).expand(*scores.shape[:3], 1)
                scores = torch.cat([scores, columns], dim=-1)
            weights = scores.softmax(dim=-1)[..., : hidden.shape[1]]
            # The first page may begin before any row's window: whatever lies there must not count, not even times 0.
            values = values.masked_fill(hidden.all(dim=0)[:, None], 0.0)
            output[start:end] = torch.einsum("hgrk,hkd->rhgd", weights, values).flatten(1, 2).to(query.dtype)
        return output


def _rotation(positions: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """By numpy: torch wakes all its threads and waits for them, which takes longer than this does."""
    angles = positions.numpy().astype(np.float32) * frequencies.numpy()
    return torch.from_numpy(np.cos(angles)), torch.from_numpy(np.sin(angles))


def _gather(stored: torch.Tensor, scales: torch.Tensor | None, table: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """The first ``num_tokens`` rows of the table's pages, in float32: [kv_heads, num_tokens, head_dim]."""
    rows = stored[table].float() if scales is None else dequantise(stored[table], scales[table])
    return rows.transpose(0, 1).flatten(1, 2)[:, :num_tokens]


def _page_arguments(pages: KVPages) -> tuple[int | None, ...]:
    """The fields of both calls that describe the pages: key_pages .. value_scale_stride."""
    key_scales, value_scales = pages.key_scales, pages.value_scales
    return (
        pages.key.data_ptr(),
        pages.value.data_ptr(),
        pages.key.stride(0),
        pages.value.stride(0),
        _PAGE_DTYPE_CODES[pages.key.dtype],
        None if key_scales is None else key_scales.data_ptr(),
        None if value_scales is None else value_scales.data_ptr(),
        0 if key_scales is None else key_scales.stride(0),
        0 if value_scales is None else value_scales.stride(0),
    )


def _check_pages(pages: KVPages) -> torch.Size:
    key_pages, value_pages = pages.key, pages.value
    shape = key_pages.shape
    if len(shape) != 4 or value_pages.shape != shape or value_pages.dtype != key_pages.dtype:
        raise ValueError(
            f"key_pages {_describe(key_pages)} and value_pages {_describe(value_pages)} must both be "
            "[pages, kv_heads, block_size, head_dim] of one dtype"
        )
    inner = (shape[2] * shape[3], shape[3], 1)
    if key_pages.stride()[1:] != inner or value_pages.stride()[1:] != inner:
        raise ValueError("each page of key_pages and value_pages must be contiguous")
    if not key_pages.is_cpu or not value_pages.is_cpu:
        raise ValueError(f"key_pages and value_pages must be CPU tensors, not on {key_pages.device}")
    if key_pages.dtype not in _PAGE_DTYPE_CODES:
        raise ValueError(f"key_pages {_describe(key_pages)} must be float32, bfloat16, float16, int8 or float8_e4m3fn")
    for name, scales in (("key_scales", pages.key_scales), ("value_scales", pages.value_scales)):
        _check_scales(name, scales, key_pages)
    return shape


def _check_scales(name: str, scales: torch.Tensor | None, pages: torch.Tensor) -> None:
    if not is_quantised(pages.dtype):
        if scales is not None:
            raise ValueError(f"pages {_describe(pages)} are not quantised and take no {name}")
        return
    if scales is None or scales.shape != pages.shape[:3] or scales.dtype != SCALE_DTYPE or not scales.is_cpu:
        given = "missing" if scales is None else _describe(scales)
        raise ValueError(f"{name} must be {list(pages.shape[:3])} float32 on cpu, not {given}: one per quantised row")
    if scales.stride()[1:] != (pages.shape[2], 1):
        raise ValueError(f"each page of {name} must be contiguous")


def _check_integers(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous():
        raise ValueError(f"{name} {_describe(tensor)} must be a contiguous {dtype} tensor of shape {list(shape)}")


def _token_stride(name: str, tensor: torch.Tensor) -> int:
    token_stride, head_stride, element_stride = tensor.stride()
    heads, head_dim = tensor.shape[1:]
    if (head_dim > 1 and element_stride != 1) or (heads > 1 and head_stride != head_dim):
        raise ValueError(f"the heads of one token must be contiguous in {name}, whose strides are {tensor.stride()}")
    return token_stride


def _row_pointer(name: str, tensor: torch.Tensor | None, count: int) -> int | None:
    if tensor is None:
        return None
    if tensor.dtype != torch.float32 or tensor.numel() != count or not tensor.is_contiguous() or not tensor.is_cpu:
        raise ValueError(f"{name} {_describe(tensor)} must be {count} contiguous float32 numbers")
    return tensor.data_ptr()


def _dtype_code(name: str, tensor: torch.Tensor) -> int:
    code = _DTYPE_CODES.get(tensor.dtype)
    if code is None or not tensor.is_cpu:
        raise ValueError(f"{name} {_describe(tensor)} must be a float32, bfloat16 or float16 CPU tensor")
    return code


def _describe(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"
