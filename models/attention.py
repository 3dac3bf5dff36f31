"""Attention of one decoder layer over its KV pages: project, norm, rotate, store, attend, project.

Knows one layer's heads and window, and a backend that knows pages; which pages, and whose, comes with each step.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from kernels.attention import AttentionBackend, LastRows, PagedLayer, Preparation
from models.linear import Linear
from models.lora import Projections
from models.norms import Norm
from models.parameter import NamedParameters, Parameter
from models.residual import Residual
from models.rotary import Rotation
from models.spec import ModelSpec, QKNorm, SharpeningSpec


def query_scales(sharpening: SharpeningSpec, positions: torch.Tensor) -> torch.Tensor:
    """What queries at ``positions`` are multiplied by, float32 [num_tokens, 1, 1]."""
    lengths = torch.floor(positions[:, None, None] / sharpening.length)
    return 1.0 + sharpening.beta * torch.log(1.0 + lengths)


class Attention:
    """Grouped-query attention, with what the spec adds: norms of queries and keys, biases, a softcap, sinks."""

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
        self._softcap = spec.attention_softcap
        self._eps = spec.norm_eps
        self._head_dim = spec.head_dim
        self._heads = [spec.num_q_heads, spec.num_kv_heads, spec.num_kv_heads]
        self._plus_one = spec.norm_plus_one
        self._qk_norm = spec.qk_norm
        self._limit = spec.qkv_limit
        q_size, kv_size = spec.num_q_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        linear = partial(Linear, dtype=dtype, device=device, dense_product=backend.dense_product)
        self._qkv = linear(
            spec.hidden_size, {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}, bias=spec.qkv_bias
        )
        self._output = linear(q_size, {"o_proj": spec.hidden_size}, bias=spec.output_bias)
        floats = partial(torch.empty, dtype=torch.float32, device=device)
        self._query_norm = self._key_norm = self._sinks = None
        if spec.qk_norm is QKNorm.HEAD:
            self._query_norm, self._key_norm = floats(spec.head_dim), floats(spec.head_dim)
        elif spec.qk_norm is QKNorm.ALL_HEADS:
            self._query_norm, self._key_norm = floats(q_size), floats(kv_size)
        elif spec.qk_norm is QKNorm.LAYER_OF_EACH_HEAD:
            self._query_norm = floats(spec.num_q_heads, spec.head_dim)
            self._key_norm = floats(spec.num_kv_heads, spec.head_dim)
        if spec.has_sinks:
            self._sinks = floats(spec.num_q_heads)

    def of_normed(
        self,
        residual: Residual,
        norm: Norm | None,
        rotation: Rotation | None,
        paged: PagedLayer,
        scales: torch.Tensor | None = None,
        last: LastRows | None = None,
    ) -> torch.Tensor:
        """Attention of the normed hidden states; like them [num_tokens, hidden_size]. ``scales`` are of the queries.

        With ``last`` only of these rows; the keys and values of all tokens are stored.
        """
        query, key, value = self._projected(residual, norm)
        if scales is not None:
            query.mul_(scales)
        norms = (self._query_norm, self._key_norm) if self._qk_norm is QKNorm.HEAD else (None, None)
        preparation = Preparation(*norms, self._eps, rotation)
        self._backend.prepare_and_store(query, key, value, paged.pages, paged.metadata.slot_mapping, preparation)
        metadata = paged.metadata
        if last is not None:
            query, metadata = query[last.rows], last.layout(metadata)
        attended = self._backend.attend(
            query,
            paged.pages,
            metadata,
            scale=self._scale,
            window=self._window,
            softcap=self._softcap,
            sinks=self._sinks,
        )
        return self._output(attended.flatten(1), residual.adapters)

    def _projected(self, residual: Residual, norm: Norm | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values [num_tokens, heads, head_dim], normed where that is not done as they are stored."""
        projected = self._qkv.of_normed(residual, norm)
        if self._limit is not None:
            projected = projected.clamp(-self._limit, self._limit)
        heads = projected.view(projected.shape[0], -1, self._head_dim)
        query, key, value = torch.split(heads, self._heads, dim=1)
        if self._qk_norm not in (QKNorm.NONE, QKNorm.HEAD):
            assert self._query_norm is not None
            assert self._key_norm is not None
            query, key = self._normed(query, self._query_norm), self._normed(key, self._key_norm)
        return query, key, value

    def _normed(self, heads: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if self._qk_norm is QKNorm.ALL_HEADS:
            return self._backend.normed(heads.flatten(1), weight, self._eps).view(heads.shape)
        return (F.layer_norm(heads.float(), heads.shape[-1:], eps=self._eps) * weight).to(heads.dtype)

    @property
    def nbytes(self) -> int:
        own = [one.nbytes for one in (self._query_norm, self._key_norm, self._sinks) if one is not None]
        return self._qkv.nbytes + self._output.nbytes + sum(own)

    def projections(self, prefix: str) -> Projections:
        """Where adapters go."""
        yield from self._qkv.projections(prefix)
        yield from self._output.projections(prefix)

    def parameters(self, prefix: str) -> NamedParameters:
        yield from self._qkv.parameters(prefix)
        yield from self._output.parameters(prefix)
        for name, norm in (("q_norm", self._query_norm), ("k_norm", self._key_norm)):
            if norm is not None and self._qk_norm is QKNorm.LAYER_OF_EACH_HEAD:
                for head, weight in enumerate(norm):
                    yield f"{prefix}{name}.{head}.weight", Parameter.of(weight)
            elif norm is not None:
                yield f"{prefix}{name}.weight", Parameter.of(norm, plus_one=self._plus_one)
        if self._sinks is not None:
            yield f"{prefix}sinks.weight", Parameter.of(self._sinks)
