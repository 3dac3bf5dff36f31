"""Llama, and what follows it (Mistral): pre-norm attention and a gated MLP (Touvron et al., 2023)."""

from __future__ import annotations

import torch

from kernels.attention import AttentionBackend, PagedLayer
from models.attention import Attention
from models.decoder import Decoder
from models.layers import GatedMLP, NamedParameters, Residual, RMSNorm, Rotation
from models.model import CausalLM
from models.spec import LayerSpec, ModelSpec


class LlamaLayer:
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""

    def __init__(
        self, spec: ModelSpec, layer: LayerSpec, backend: AttentionBackend, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._attention_norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps, backend, plus_one=False, device=device)
        self._attention = Attention(spec, layer.window, backend, dtype=dtype, device=device)
        self._mlp_norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps, backend, plus_one=False, device=device)
        self._mlp = GatedMLP(
            spec.hidden_size, spec.intermediate_size, spec.activation, backend, dtype=dtype, device=device
        )

    def __call__(self, residual: Residual, rotation: Rotation, paged: PagedLayer) -> None:
        residual.add(self._attention.of_normed(residual, self._attention_norm, rotation, paged))
        residual.add(self._mlp.of_normed(residual, self._mlp_norm))

    @property
    def nbytes(self) -> int:
        return self._attention.nbytes + self._mlp.nbytes + 2 * self._mlp_norm.weight.nbytes

    def parameters(self, prefix: str) -> NamedParameters:
        yield from self._attention_norm.parameters(f"{prefix}input_layernorm")
        yield from self._attention.parameters(f"{prefix}self_attn.")
        yield from self._mlp_norm.parameters(f"{prefix}post_attention_layernorm")
        yield from self._mlp.parameters(f"{prefix}mlp.")


def build_llama(spec: ModelSpec, backend: AttentionBackend, *, dtype: torch.dtype, device: torch.device) -> CausalLM:
    """A Llama with uninitialised weights."""
    return Decoder(
        spec,
        lambda layer: LlamaLayer(spec, layer, backend, dtype, device),
        backend=backend,
        plus_one=False,
        dtype=dtype,
        device=device,
    )
