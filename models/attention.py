"""Attention of one decoder layer over its KV pages: project, norm, rotate, store, attend, project.

Knows one layer's heads and window, and a backend that knows pages; which pages, and whose, comes with each step.
"""

from __future__ import annotations

from functools import partial

import torch

from kernels.attention import AttentionBackend, PagedLayer, Preparation
from models.layers import Linear, NamedParameters, Residual, RMSNorm, Rotation
from models.parameter import Parameter
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
        self._heads = [spec.num_q_heads, spec.num_kv_heads, spec.num_kv_heads]
        q_size, kv_size = spec.num_q_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        linear = partial(
            Linear, bias=spec.attention_bias, dtype=dtype, device=device, dense_product=backend.dense_product
        )
        self._qkv = linear(spec.hidden_size, {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size})
        self._output = linear(q_size, {"o_proj": spec.hidden_size})
        self._query_norm, self._key_norm = (
            torch.empty(spec.head_dim, dtype=torch.float32, device=device) if spec.qk_norm else None for _ in range(2)
        )

    def of_normed(self, residual: Residual, norm: RMSNorm, rotation: Rotation, paged: PagedLayer) -> torch.Tensor:
        """Attention of the normed hidden states; like them [num_tokens, hidden_size]."""
        projected = self._qkv.of_normed(residual, norm)
        heads = projected.view(projected.shape[0], -1, self._head_dim)
        query, key, value = torch.split(heads, self._heads, dim=1)
        preparation = Preparation(self._query_norm, self._key_norm, self._eps, rotation)
        self._backend.prepare_and_store(query, key, value, paged.pages, paged.metadata.slot_mapping, preparation)
        attended = self._backend.attend(query, paged.pages, paged.metadata, scale=self._scale, window=self._window)
        return self._output(attended.flatten(1))

    @property
    def nbytes(self) -> int:
        norms = [norm.nbytes for norm in (self._query_norm, self._key_norm) if norm is not None]
        return self._qkv.nbytes + self._output.nbytes + sum(norms)

    def parameters(self, prefix: str) -> NamedParameters:
        yield from self._qkv.parameters(prefix)
        yield from self._output.parameters(prefix)
        for name, norm in (("q_norm", self._query_norm), ("k_norm", self._key_norm)):
            if norm is not None:
                yield f"{prefix}{name}.weight", Parameter.of(norm, plus_one=True)
