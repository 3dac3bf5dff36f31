"""Slow, obvious, float64: what every kernel is tested against.

One Python loop per sequence and query row, no batching tricks, so that a reader can check it against the formula
``softmax(scale * q k^T) v`` by eye. Layouts are those of ``kernels.attention``.
"""

from __future__ import annotations

import torch


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Write token ``t`` to page ``slot // block_size`` at offset ``slot % block_size``; skip slots of -1."""
    block_size = key_pages.shape[2]
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot < 0:
            continue
        page, offset = divmod(slot, block_size)
        key_pages[page, :, offset] = key[token].to(key_pages.dtype)
        value_pages[page, :, offset] = value[token].to(value_pages.dtype)


def paged_attention(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Causal, optionally windowed attention over pages, in float64: [num_tokens, num_q_heads, head_dim]."""
    block_size = key_pages.shape[2]
    queries_per_kv_head = query.shape[1] // key_pages.shape[1]
    output = torch.zeros(query.shape, dtype=torch.float64)
    starts = query_start_loc.tolist()
    for sequence, seq_len in enumerate(seq_lens.tolist()):
        start, end = starts[sequence], starts[sequence + 1]
        for row in range(start, end):
            position = seq_len - (end - row)
            first = 0 if window is None else max(0, position - window + 1)
            visible = range(first, position + 1)
            pages = torch.tensor([int(block_table[sequence, p // block_size]) for p in visible])
            offsets = torch.tensor([p % block_size for p in visible])
            keys = key_pages[pages, :, offsets].double()  # [visible, kv_heads, head_dim]
            values = value_pages[pages, :, offsets].double()
            for head in range(query.shape[1]):
                kv_head = head // queries_per_kv_head
                scores = scale * (keys[:, kv_head] @ query[row, head].double())
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                weights = torch.exp(scores - scores.max())
                output[row, head] = (weights / weights.sum()) @ values[:, kv_head]
    return output
