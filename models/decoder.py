"""The frame that decoders share: embed, run the layers, norm, project the rows asked for.

Knows the order of things, not what a layer computes: that is ``models.llama`` and ``models.gemma3``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from kernels.attention import AttentionBackend, PagedLayer
from models.layers import Embedding, Linear, NamedParameters, Residual, RMSNorm, Rotary, Rotation
from models.matrix_product import MatrixProduct
from models.parameter import Parameter
from models.spec import LayerSpec, ModelSpec, RopeSpec


class DecoderLayer(Protocol):
    """One layer, which reads the hidden states and adds to them."""

    def __call__(self, residual: Residual, rotation: Rotation, paged: PagedLayer) -> None: ...

    def parameters(self, prefix: str) -> NamedParameters: ...

    @property
    def nbytes(self) -> int: ...


class Decoder:
    """A CausalLM of ``make_layer``'s layers. The head is the embedding itself where the spec ties them.

    A tied table is looked up by row and multiplied. Kept in quantised form or in bfloat16 for the native library, one
    copy serves both. In other floats no layout does: on CPUs the head has a packed copy of the table, two to three
    times as fast at small batches, at the price of its bytes again (671 MB for Gemma 3 270M in float32).
    """

    def __init__(
        self,
        spec: ModelSpec,
        make_layer: Callable[[LayerSpec], DecoderLayer],
        *,
        backend: AttentionBackend,
        plus_one: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.spec = spec
        self._embedding = Embedding(spec.vocab_size, spec.hidden_size, spec.embedding_scale, dtype=dtype, device=device)
        self._layers = [make_layer(layer) for layer in spec.layers]
        self._norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps, backend, plus_one=plus_one, device=device)
        self._head: Linear | MatrixProduct = (
            MatrixProduct(self._embedding.place, dense_product=backend.dense_product)
            if spec.tied_embeddings
            else Linear(
                spec.hidden_size,
                {"lm_head": spec.vocab_size},
                bias=False,
                dtype=dtype,
                device=device,
                dense_product=backend.dense_product,
            )
        )
        ropes: list[RopeSpec] = []
        for layer in spec.layers:
            if layer.rope not in ropes:
                ropes.append(layer.rope)
        self._rotaries = [Rotary(rope, spec.head_dim, backend, device=device) for rope in ropes]
        self._rotary_of_layer = [ropes.index(layer.rope) for layer in spec.layers]
        self._backend = backend
        self._replay = backend.layer_replay
        self._compute_layers = self._compute_all  # one object, so that a replay knows it again

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        layers: Sequence[PagedLayer],
        logits_rows: torch.Tensor,
    ) -> torch.Tensor:
        """See ``models.model.CausalLM.forward``."""
        return self.logits(self.hidden(token_ids, positions, layers).rows(logits_rows))

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor, layers: Sequence[PagedLayer]) -> Residual:
        """See ``models.model.CausalLM.hidden``."""
        x = self._embedding(token_ids)
        rotations = [rotary(positions) for rotary in self._rotaries]
        if self._replay is None:
            return self._after_layers(x, rotations, layers)
        return Residual(self._replay(self._compute_layers, x, rotations, layers), self._backend)

    def logits(self, hidden: Residual) -> torch.Tensor:
        """See ``models.model.CausalLM.logits``."""
        if isinstance(self._head, Linear):
            return self._head.of_normed(hidden, self._norm).float()
        if self._head.takes_prologues:
            return self._head.of_normed(hidden.total(), self._norm.weight, self._norm.eps).float()
        return self._head(hidden.normed(self._norm)).float()

    def greedy(self, hidden: Residual) -> torch.Tensor:
        """See ``models.model.CausalLM.greedy``."""
        if isinstance(self._head, Linear):
            return self._head.argmax_of_normed(hidden, self._norm)
        if self._head.takes_prologues:
            return self._head.argmax_of_normed(hidden.total(), self._norm.weight, self._norm.eps)
        return self._head(hidden.normed(self._norm)).float().argmax(dim=-1)

    def normed(self, hidden: Residual) -> torch.Tensor:
        """See ``models.model.CausalLM.normed``."""
        return hidden.normed(self._norm).float()

    def _compute_all(
        self, x: torch.Tensor, rotations: Sequence[Rotation], layers: Sequence[PagedLayer]
    ) -> torch.Tensor:
        return self._after_layers(x, rotations, layers).total()

    def _after_layers(self, x: torch.Tensor, rotations: Sequence[Rotation], layers: Sequence[PagedLayer]) -> Residual:
        residual = Residual(x, self._backend)
        for layer, rotary, paged in zip(self._layers, self._rotary_of_layer, layers, strict=True):
            layer(residual, rotations[rotary], paged)
        return residual

    def parameters(self) -> Mapping[str, Parameter]:
        """See ``models.model.CausalLM.parameters``."""
        tied = self._head if isinstance(self._head, MatrixProduct) else None
        named = dict(self._embedding.parameters("model.embed_tokens", tied))
        for index, layer in enumerate(self._layers):
            named.update(layer.parameters(f"model.layers.{index}."))
        named.update(self._norm.parameters("model.norm"))
        if isinstance(self._head, Linear):
            named.update(self._head.parameters(""))
        return named

    def weight_bytes(self) -> int:
        """See ``models.model.CausalLM.weight_bytes``. A tied table counts twice where it was copied to be packed."""
        head = self._head.nbytes if isinstance(self._head, Linear) else self._head.copied_nbytes
        parts = [self._embedding.nbytes, self._norm.weight.nbytes, head]
        return sum(parts) + sum(layer.nbytes for layer in self._layers)
