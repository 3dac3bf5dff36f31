"""Slow, obvious, float64: what every kernel is tested against.

One Python loop per sequence and query row, no batching tricks, so that a reader can check it against the formula
``softmax(scale * q k^T) v`` by eye. Layouts are those of ``kernels.attention``.
"""

from __future__ import annotations

import torch

from kernels.attention import KVPages, Preparation
from kernels.quantisation import quantise


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    pages: KVPages,
    slot_mapping: torch.Tensor,
) -> None:
    """Write token ``t`` to page ``slot // block_size`` at offset ``slot % block_size``; skip slots of -1."""
    block_size = pages.key.shape[2]
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot < 0:
            continue
        page, offset = divmod(slot, block_size)
        for row, stored, scales in (
            (key[token], pages.key, pages.key_scales),
            (value[token], pages.value, pages.value_scales),
        ):
            if scales is None:
                stored[page, :, offset] = row.to(stored.dtype)
            else:
                stored[page, :, offset], scales[page, :, offset] = quantise(row, stored.dtype)


def prepare(rows: torch.Tensor, norm: torch.Tensor | None, preparation: Preparation) -> torch.Tensor:
    """Heads [num_tokens, num_heads, head_dim] of queries or keys after RMSNorm by ``norm`` and rotary, in float64."""
    rows = rows.double()
    if norm is not None:
        rows = rows / torch.sqrt((rows**2).mean(dim=-1, keepdim=True) + preparation.eps) * norm.double()
    if preparation.rotation is not None:
        cos, sin = (table.double().reshape(rows.shape[0], 1, -1) for table in preparation.rotation)
        pairs = cos.shape[-1]
        first, second, rest = rows[..., :pairs], rows[..., pairs : 2 * pairs], rows[..., 2 * pairs :]
        rows = torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
    return rows


def paged_attention(
    query: torch.Tensor,
    pages: KVPages,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal, optionally windowed attention over pages, in float64: [num_tokens, num_q_heads, head_dim].

    A sink is one more score beside those of the visible positions; its weight goes to no value. Rows before position 0
    see nothing and stay zeros.
    """
    block_size = pages.key.shape[2]
    queries_per_kv_head = query.shape[1] // pages.key.shape[1]
    output = torch.zeros(query.shape, dtype=torch.float64)
    starts = query_start_loc.tolist()
    for sequence, seq_len in enumerate(seq_lens.tolist()):
        start, end = starts[sequence], starts[sequence + 1]
        for row in range(start, end):
            position = seq_len - (end - row)
            if position < 0:
                continue
            first = 0 if window is None else max(0, position - window + 1)
            visible = range(first, position + 1)
            page_ids = torch.tensor([int(block_table[sequence, p // block_size]) for p in visible])
            offsets = torch.tensor([p % block_size for p in visible])
            keys = _rows(pages.key, pages.key_scales, page_ids, offsets)
            values = _rows(pages.value, pages.value_scales, page_ids, offsets)
            for head in range(query.shape[1]):
                kv_head = head // queries_per_kv_head
                scores = scale * (keys[:, kv_head] @ query[row, head].double())
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                if sinks is not None:
                    scores = torch.cat([scores, sinks[head : head + 1].double()])
                weights = torch.exp(scores - scores.max())
                output[row, head] = (weights / weights.sum())[: len(visible)] @ values[:, kv_head]
    return output


def _rows(
    stored: torch.Tensor, scales: torch.Tensor | None, page_ids: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    """The rows as they read, in float64: [visible, kv_heads, head_dim]."""
    rows = stored[page_ids, :, offsets].double()
    return rows if scales is None else rows * scales[page_ids, :, offsets].double()[..., None]
