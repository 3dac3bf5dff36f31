"""Gemma 3 text models: norms on both sides of each block, QK-norm, five sliding layers to a full one.

Source: Gemma 3 technical report (2025). Windows, rotary bases and the embedding scale come from the spec.
"""

from __future__ import annotations

import torch

from kernels.attention import AttentionBackend, PagedLayer
from models.attention import Attention
from models.decoder import Decoder
from models.layers import GatedMLP, NamedParameters, Residual, RMSNorm, Rotation
from models.model import CausalLM
from models.spec import LayerSpec, ModelSpec


class Gemma3Layer:
    """``x + norm(attention(norm(x)))``, then ``x + norm(mlp(norm(x)))``."""

    def __init__(
        self, spec: ModelSpec, layer: LayerSpec, backend: AttentionBackend, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._input_norm, self._post_attention_norm, self._pre_mlp_norm, self._post_mlp_norm = (
            RMSNorm(spec.hidden_size, spec.rms_norm_eps, backend, plus_one=True, device=device) for _ in range(4)
        )
        self._attention = Attention(spec, layer.window, backend, dtype=dtype, device=device)
        self._mlp = GatedMLP(
            spec.hidden_size, spec.intermediate_size, spec.activation, backend, dtype=dtype, device=device
        )

    def __call__(self, residual: Residual, rotation: Rotation, paged: PagedLayer) -> None:
        attended = self._attention.of_normed(residual, self._input_norm, rotation, paged)
        residual.add_normed(attended, self._post_attention_norm)
        residual.add_normed(self._mlp.of_normed(residual, self._pre_mlp_norm), self._post_mlp_norm)

    @property
    def nbytes(self) -> int:
        return self._attention.nbytes + self._mlp.nbytes + 4 * self._input_norm.weight.nbytes

    def parameters(self, prefix: str) -> NamedParameters:
        yield from self._input_norm.parameters(f"{prefix}input_layernorm")
        yield from self._attention.parameters(f"{prefix}self_attn.")
        yield from self._post_attention_norm.parameters(f"{prefix}post_attention_layernorm")
        yield from self._pre_mlp_norm.parameters(f"{prefix}pre_feedforward_layernorm")
        yield from self._mlp.parameters(f"{prefix}mlp.")
        yield from self._post_mlp_norm.parameters(f"{prefix}post_feedforward_layernorm")


def build_gemma3(spec: ModelSpec, backend: AttentionBackend, *, dtype: torch.dtype, device: torch.device) -> CausalLM:
    """A Gemma 3 with uninitialised weights."""
    return Decoder(
        spec,
        lambda layer: Gemma3Layer(spec, layer, backend, dtype, device),
        backend=backend,
        plus_one=True,
        dtype=dtype,
        device=device,
    )
