"""TritonBackend: the paged-attention backend of GPUs.

Chooses kernels by ``metadata.max_query_len`` alone, so that no step waits for the device: a step of decodes runs the
split decode kernel; any other step runs the prefill kernel for sequences with two or more rows and the decode kernel
for those with one. Where the metadata names shared prefixes, decodes of layers without a window read them once.

Deterministic, it gives a row the same bits in any batch, in any chunk of its prompt and as a decode: decode splits at
fixed positions, both kernels use one tile and merge alike, products and sums are not fused, prefixes are not shared,
and float weights are multiplied by ``dense_gemm`` instead of a library. That costs speed where batches are small and
contexts long, and wherever the library is faster. Otherwise a decode's last bits depend on how many splits the size of
the batch calls for, and on the library's choice. Proven in Triton's interpreter; not yet run on a GPU.

Holds no state but its mode. Rows of ``query`` that no sequence owns come back undefined.
"""

from __future__ import annotations

import torch

from kernels.attention import AttentionMetadata, KVPages, Preparation
from kernels.gpu.activations import Activation, gate
from kernels.gpu.cascade import cascade_attention
from kernels.gpu.decode import decode_attention
from kernels.gpu.dense_gemm import dense_gemm
from kernels.gpu.moe_gemm import fixed_grouped_gemm, grouped_gemm
from kernels.gpu.norms import add_rms_norm, rms_norm, rms_norm_add
from kernels.gpu.prefill import prefill_attention
from kernels.gpu.quantised_matrix import DeviceKernels
from kernels.gpu.store_kv import prepare_and_store, store_kv
from kernels.products import DenseProduct, ExpertProduct


class TritonBackend:
    """Implements ``kernels.attention.AttentionBackend`` with Triton, on any GPU Triton compiles for."""

    name = "triton"
    min_rows = 1
    layer_replay = None  # a recorded graph does what it is for

    def __init__(self, *, is_deterministic: bool = False) -> None:
        self._is_deterministic = is_deterministic

    @property
    def dense_product(self) -> DenseProduct | None:
        """The one whose rows do not depend on their number, where that is wanted."""
        return dense_gemm if self._is_deterministic else None

    @property
    def expert_product(self) -> ExpertProduct:
        """All experts in one launch, so that the host needs not know which were chosen."""
        return fixed_grouped_gemm if self._is_deterministic else grouped_gemm

    @property
    def weight_kernels(self) -> DeviceKernels:
        """Weight-only products, of this mode."""
        return DeviceKernels(is_deterministic=self._is_deterministic)

    def store_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        pages: KVPages,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write each token's key and value into its slot, rounded or quantised; a slot of -1 is skipped."""
        store_kv(key, value, pages, slot_mapping)

    def prepare_and_store(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        pages: KVPages,
        slot_mapping: torch.Tensor,
        preparation: Preparation,
    ) -> None:
        """Norm and rotate ``query``, in place, and ``key``, then store as ``store_kv`` does, all in one launch."""
        prepare_and_store(query, key, value, pages, slot_mapping, preparation)

    def rotation(self, positions: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions.float() * frequencies
        return angles.cos(), angles.sin()

    def normed(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """The RMSNorm of ``x``."""
        return rms_norm(x, weight, eps)

    def normed_sum(
        self, x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The RMSNorm of ``x + branch``, and the sum, in one launch."""
        return add_rms_norm(x, branch, weight, eps)

    def gated(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        """``activation(gate) * up`` of the halves of ``gate_up``."""
        return gate(gate_up, Activation(activation))

    def add(self, x: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
        return x + branch

    def add_normed(self, x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """``x`` plus the RMSNorm of ``branch``."""
        return rms_norm_add(branch, x, weight, eps)

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
                sinks=sinks,
                min_query_len=2,
                is_deterministic=self._is_deterministic,
            )
        if metadata.max_query_len > 1 and metadata.seq_lens.shape[0] == 1:
            return output
        prefix = metadata.shared_prefix
        if prefix is not None and window is None and not self._is_deterministic:
            cascade_attention(query, pages, metadata, output, prefix, scale=scale, softcap=softcap, sinks=sinks)
        else:
            decode_attention(
                query,
                pages,
                metadata,
                output,
                scale=scale,
                window=window,
                softcap=softcap,
                sinks=sinks,
                is_deterministic=self._is_deterministic,
            )
        return output
