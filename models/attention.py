"""Attention of one decoder layer over its KV pages: project, norm, rotate, store, attend, project.

Knows one layer's heads and window, and a backend that knows pages; which pages, and whose, comes with each step.
"""

from __future__ import annotations

import torch

from kernels.attention import AttentionBackend, PagedLayer
from models.layers import Linear, NamedParameters, RMSNorm, Rotation, rms_norm, rotate
from models.model import Parameter
from models.spec import ModelSpec


class Attention:
    """Grouped-query attention; ``qk_norm`` of the spec adds an RMSNorm over each query and key head."""

    def __init__(
        self,
        spec: ModelSpec,
        window: int | None,
        backend: AttentionBackend,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._backend = backend
        self._window = window
        self._scale = spec.attention_scale
        self._eps = spec.rms_norm_eps
        self._head_dim = spec.head_dim
        self._num_q_heads = spec.num_q_heads
        self._num_rotated_heads = spec.num_q_heads + spec.num_kv_heads
        q_size, kv_size = spec.num_q_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self._qkv = Linear(
            spec.hidden_size,
            {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size},
            bias=spec.attention_bias,
            dtype=dtype,
            device=device,
        )
        self._output = Linear(
            q_size, {"o_proj": spec.hidden_size}, bias=spec.attention_bias, dtype=dtype, device=device
        )
        # one row per query and key head, so that both are normed and rotated together
        self._qk_norm = (
            torch.empty(self._num_rotated_heads, spec.head_dim, dtype=torch.float32, device=device)
            if spec.qk_norm
            else None
        )

    def of_normed(self, x: torch.Tensor, norm: RMSNorm, rotation: Rotation, paged: PagedLayer) -> torch.Tensor:
        """Attention of ``norm(x)``; like ``x`` [num_tokens, hidden_size]."""
        heads = self._qkv.of_normed(x, norm).view(x.shape[0], -1, self._head_dim)
        rotated, value = heads[:, : self._num_rotated_heads], heads[:, self._num_rotated_heads :]
        if self._qk_norm is not None:
            rotated = rms_norm(rotated, self._qk_norm, self._eps)
        rotated = rotate(rotated, rotation)
        query, key = rotated[:, : self._num_q_heads], rotated[:, self._num_q_heads :]
        self._backend.store_kv(key, value, paged.pages, paged.metadata.slot_mapping)
        attended = self._backend.attend(query, paged.pages, paged.metadata, scale=self._scale, window=self._window)
        return self._output(attended.reshape(x.shape[0], -1))

    @property
    def nbytes(self) -> int:
        norms = 0 if self._qk_norm is None else self._qk_norm.nbytes
        return self._qkv.nbytes + self._output.nbytes + norms

    def parameters(self, prefix: str) -> NamedParameters:
        yield from self._qkv.parameters(prefix)
        yield from self._output.parameters(prefix)
        if self._qk_norm is not None:
            shape = (self._head_dim,)
            yield f"{prefix}q_norm.weight", Parameter(self._qk_norm[: self._num_q_heads], shape, plus_one=True)
            yield f"{prefix}k_norm.weight", Parameter(self._qk_norm[self._num_q_heads :], shape, plus_one=True)
