"""Paged attention as the models see it: one metadata record, one backend interface, one choice.

Knows tensors and pages only: nothing of requests, models or who owns a page.

Layouts, used by every backend:

    query            [num_tokens, num_q_heads, head_dim]
    key, value       [num_tokens, num_kv_heads, head_dim]
    key_pages,
    value_pages      [num_pages, num_kv_heads, block_size, head_dim]   (heads first)
    key_scales,
    value_scales     float32 [num_pages, num_kv_heads, block_size], for quantised pages (``kernels.quantisation``)
    slot             page * block_size + offset, with page = block_table[sequence, position // block_size]

The tokens of one step are ragged: sequence ``s`` owns the query rows ``query_start_loc[s] : query_start_loc[s + 1]``,
and they are the last rows of its ``seq_lens[s]`` tokens. A decode is a sequence with one row, a prefill chunk one
with more; no backend needs to be told which is which. Block tables are indexed by absolute position, whatever the
window: entries for pages that slid out of a window are stale or 0, the null page, and must never be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Ragged layout of one step for the layers that share one block table.

    Shapes: ``query_start_loc`` int32 [num_seqs + 1]; ``seq_lens`` int32 [num_seqs], in tokens, this step's included;
    ``block_table`` int32 [num_seqs, max_blocks]; ``slot_mapping`` int64 [num_tokens], where each new token's key and
    value go. ``max_query_len`` and ``max_seq_len`` are plain ints, so that no backend waits for the device to learn
    them.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    max_query_len: int
    max_seq_len: int


@dataclass(frozen=True, slots=True)
class KVPages:
    """One layer's part of all pages: keys, values and, where these are quantised, their scales. Shapes: see above."""

    key: torch.Tensor
    value: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class PagedLayer:
    """What one layer's attention needs in a step: its own pages and the layout of the tokens."""

    pages: KVPages
    metadata: AttentionMetadata


class AttentionBackend(Protocol):
    """Stores new keys and values into pages and attends over pages."""

    name: str

    def store_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        pages: KVPages,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write each token's key and value into its slot, rounded or quantised; a slot of -1 is skipped."""

    def attend(
        self,
        query: torch.Tensor,
        pages: KVPages,
        metadata: AttentionMetadata,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Causal attention of every query row over its sequence's pages; returns the shape and dtype of ``query``.

        Row at position ``p`` sees positions ``max(0, p - window + 1) .. p``. ``softcap`` c turns a score x into
        ``c * tanh(x / c)`` (Gemma 2). Scores and sums are accumulated in float32.
        """
