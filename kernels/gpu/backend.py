"""TritonBackend: the paged-attention backend of GPUs.

Chooses kernels by ``metadata.max_query_len`` alone, so that no step waits for the device: a step of decodes runs the
split decode kernel; any other step runs the prefill kernel for sequences with two or more rows and the decode kernel
for those with one. So a decode computes the same bits beside a prefill chunk as without it.

Holds no state. Rows of ``query`` that no sequence owns come back undefined.
"""

from __future__ import annotations

import torch

from kernels.attention import AttentionMetadata, KVPages
from kernels.gpu.decode import decode_attention
from kernels.gpu.prefill import prefill_attention
from kernels.gpu.store_kv import store_kv


class TritonBackend:
    """Implements ``kernels.attention.AttentionBackend`` with Triton, on any GPU Triton compiles for."""

    name = "triton"

    def store_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        pages: KVPages,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write each token's key and value into its slot, rounded or quantised; a slot of -1 is skipped."""
        store_kv(key, value, pages, slot_mapping)

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
        """Causal attention of every query row over its sequence's pages; returns the shape and dtype of ``query``."""
        output = torch.empty_like(query)
        if metadata.max_query_len > 1:
            prefill_attention(
                query,
                pages,
                metadata,
                output,
                scale=scale,
                window=window,
                softcap=softcap,
                min_query_len=2,
            )
        if metadata.max_query_len == 1 or metadata.seq_lens.shape[0] > 1:
            decode_attention(query, pages, metadata, output, scale=scale, window=window, softcap=softcap)
        return output
