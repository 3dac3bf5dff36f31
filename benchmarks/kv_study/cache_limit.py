"""A limit on what attention may read of the cache: the newest positions, and the first few (attention sinks).

The limit is a mask over a whole cache, laid on the layers that see everything; layers with a window of their own keep
it. A window alone is the backend's own kernel. With sinks, a small dense attention in float32 over gathered rows: for
measuring quality, not speed. Rows keep the positions they were written at, where Xiao et al. ("Efficient streaming
language models with attention sinks", 2023) number them anew. Knows tensors and pages only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch

from kernels.attention import AttentionBackend, AttentionMetadata, KVPages
from kernels.quantisation import dequantise


@dataclass(frozen=True, slots=True)
class CacheLimit:
    """``kept`` positions in all, the newest included; ``sinks`` of them are the first of the sequence. None: all."""

    kept: int | None = None
    sinks: int = 0

    def visible(self, positions: torch.Tensor, seq_len: int) -> torch.Tensor:
        """Bool [num_positions, seq_len]: which keys a query at each of ``positions`` sees."""
        keys, queries = torch.arange(seq_len), positions[:, None]
        visible = keys <= queries
        if self.kept is not None:
            visible &= (keys > queries - (self.kept - self.sinks)) | (keys < self.sinks)
        return visible


NO_LIMIT = CacheLimit()


class LimitedBackend:
    """``backend`` under ``limit``, which may be changed between steps."""

    layer_replay = None  # its calls would not come by here

    def __init__(self, backend: AttentionBackend) -> None:
        self._backend = backend
        self.limit = NO_LIMIT

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def as_backend(self) -> AttentionBackend:
        """Itself, as models take it."""
        return cast(AttentionBackend, self)

    def attend(
        self,
        query: torch.Tensor,
        pages: KVPages,
        metadata: AttentionMetadata,
        *,
        scale: float,
        window: int | None = None,
        **others: Any,
    ) -> torch.Tensor:
        """As ``AttentionBackend.attend``; ``window`` None is where the limit holds."""
        limit = self.limit
        if window is not None or not limit.sinks:
            window = limit.kept if window is None else window
            return self._backend.attend(query, pages, metadata, scale=scale, window=window, **others)
        if others.get("softcap") is not None or others.get("sinks") is not None:
            raise ValueError("attention with a softcap or with sinks of its own cannot be limited with sinks")
        output = torch.empty_like(query)
        starts = metadata.query_start_loc.tolist()
        for sequence, seq_len in enumerate(metadata.seq_lens.tolist()):
            rows = slice(starts[sequence], starts[sequence + 1])
            table = metadata.block_table[sequence].long()
            keys = _rows(pages.key, pages.key_scales, table, seq_len)
            values = _rows(pages.value, pages.value_scales, table, seq_len)
            positions = torch.arange(seq_len - (rows.stop - rows.start), seq_len)
            visible = limit.visible(positions, seq_len)
            output[rows] = dense_attention(query[rows], keys, values, visible, scale)
        return output


def dense_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor, scale: float
) -> torch.Tensor:
    """Float32 [num_queries, num_q_heads, head_dim] for keys and values [num_kv_heads, seq_len, head_dim]."""
    num_queries, num_q_heads, head_dim = query.shape
    num_kv_heads = keys.shape[0]
    grouped = query.float().view(num_queries, num_kv_heads, num_q_heads // num_kv_heads, head_dim)
    scores = torch.einsum("qhgd,hkd->hgqk", grouped, keys) * scale
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("hgqk,hkd->qhgd", weights, values).reshape(query.shape)


def _rows(stored: torch.Tensor, scales: torch.Tensor | None, table: torch.Tensor, seq_len: int) -> torch.Tensor:
    """A sequence's rows as they read, gathered from its pages: float32 [num_kv_heads, seq_len, head_dim]."""
    block_size = stored.shape[2]
    pages = table[: -(-seq_len // block_size)]
    rows = stored[pages].float() if scales is None else dequantise(stored[pages], scales[pages])
    return rows.transpose(0, 1).flatten(1, 2)[:, :seq_len]
