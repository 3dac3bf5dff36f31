"""DecoderLayer: attention and an MLP, each a branch that is added to the hidden states.

Where its norms are, and whether the branches read the same states, is the spec's to say: there is one layer for all
families.
"""

from __future__ import annotations

from typing import Protocol

import torch

from kernels.attention import AttentionBackend, LastRows, PagedLayer
from models.attention import Attention
from models.experts import Experts
from models.lora import Projections
from models.mlp import GatedMLP, PlainMLP
from models.norms import Norm, make_norm
from models.parameter import NamedParameters
from models.residual import Residual
from models.rotary import Rotation
from models.spec import LayerSpec, ModelSpec, NormPlace, Parallel


class MLP(Protocol):
    """What a layer does to each token by itself."""

    def of_normed(self, residual: Residual, norm: Norm | None) -> torch.Tensor:
        """The block's output for the normed hidden states."""

    @property
    def nbytes(self) -> int: ...

    def projections(self, prefix: str) -> Projections:
        """Where adapters go."""

    def parameters(self, prefix: str) -> NamedParameters: ...


class DecoderLayer:
    """Adds to the hidden states: ``x + attention(norm(x))``, then ``x + mlp(norm(x))``, or as the spec says.

    The names of norms are those of Hugging Face files, where ``post_attention_layernorm`` is the norm of the MLP's
    input in layers whose norms are before a branch, and of attention's output in others.
    """

    def __init__(
        self, spec: ModelSpec, layer: LayerSpec, backend: AttentionBackend, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._is_parallel = spec.parallel is not Parallel.NO
        self._scale = spec.residual_scale
        self._norms = {name: make_norm(spec, backend, device) for name in _norm_names(spec)}
        before = spec.norm_place is NormPlace.BEFORE
        shares_norm = spec.parallel is Parallel.ONE_NORM
        self._shared_norm = self._norms["input_layernorm"] if shares_norm else None
        self._attention_norm = None if shares_norm else self._norms.get("input_layernorm")
        self._attended_norm = None if before else self._norms["post_attention_layernorm"]
        mlp_norm = "post_attention_layernorm" if before else "pre_feedforward_layernorm"
        self._mlp_norm = self._norms.get(mlp_norm)
        self._backend = backend
        self._mlp_output_norm = self._norms.get("post_feedforward_layernorm")
        self._attention = Attention(spec, layer.window, backend, dtype=dtype, device=device)
        self._mlp = _make_mlp(spec, layer, backend, dtype, device)

    def __call__(
        self,
        residual: Residual,
        rotation: Rotation | None,
        paged: PagedLayer,
        scales: torch.Tensor | None = None,
        last: LastRows | None = None,
    ) -> None:
        """Store the keys and values of all tokens. With ``last`` the other tokens' states end here."""
        states = residual
        if self._shared_norm is not None:
            states = Residual(residual.normed(self._shared_norm), self._backend, adapters=residual.adapters)
        attended = self._attention.of_normed(states, self._attention_norm, rotation, paged, scales, last)
        if last is not None:
            residual.narrow(last.rows)
            if states is not residual:
                states.narrow(last.rows)
        if self._is_parallel:
            transformed = self._mlp.of_normed(states, self._mlp_norm)
            self._add(residual, attended, self._attended_norm)
        else:
            self._add(residual, attended, self._attended_norm)
            transformed = self._mlp.of_normed(residual, self._mlp_norm)
        self._add(residual, transformed, self._mlp_output_norm)

    def _add(self, residual: Residual, branch: torch.Tensor, norm: Norm | None) -> None:
        if norm is not None:
            residual.add_normed(branch, norm)
        else:
            residual.add(branch if self._scale == 1.0 else branch * self._scale)

    @property
    def nbytes(self) -> int:
        return self._attention.nbytes + self._mlp.nbytes + sum(norm.nbytes for norm in self._norms.values())

    def projections(self, prefix: str) -> Projections:
        """Where adapters go."""
        yield from self._attention.projections(f"{prefix}self_attn.")
        yield from self._mlp.projections(f"{prefix}mlp.")

    def parameters(self, prefix: str) -> NamedParameters:
        yield from self._attention.parameters(f"{prefix}self_attn.")
        yield from self._mlp.parameters(f"{prefix}mlp.")
        for name, norm in self._norms.items():
            yield from norm.parameters(f"{prefix}{name}")


def _norm_names(spec: ModelSpec) -> tuple[str, ...]:
    if spec.parallel is Parallel.ONE_NORM:
        return ("input_layernorm",)
    if spec.norm_place is NormPlace.BEFORE:
        return ("input_layernorm", "post_attention_layernorm")
    if spec.norm_place is NormPlace.AFTER:
        return ("post_attention_layernorm", "post_feedforward_layernorm")
    return (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )


def _make_mlp(
    spec: ModelSpec, layer: LayerSpec, backend: AttentionBackend, dtype: torch.dtype, device: torch.device
) -> MLP:
    if layer.is_sparse:
        assert spec.experts is not None
        return Experts(spec, spec.experts, backend, dtype=dtype, device=device)
    make = GatedMLP if spec.gated_mlp else PlainMLP
    return make(
        spec.hidden_size,
        spec.intermediate_size,
        spec.activation,
        backend,
        bias=spec.mlp_bias,
        dtype=dtype,
        device=device,
    )
