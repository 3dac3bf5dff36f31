"""Decoder: embed, run the layers, norm, project the rows asked for.

Knows the order of things, not what a layer computes: that is ``models.decoder_layer``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from kernels.attention import AttentionBackend, LastRows, PagedLayer
from models.attention import query_scales
from models.decoder_layer import DecoderLayer
from models.embedding import Embedding
from models.linear import Linear, argmax_of_normed, product_of_normed
from models.lora import LoraAdapter, LoraDeltas, LoraPlace, LoraRows, LoraWeights
from models.matrix_product import MatrixProduct
from models.norms import make_norm
from models.parameter import Parameter
from models.residual import Residual
from models.rotary import Rotary, Rotation
from models.spec import ModelSpec, RopeSpec


class Decoder:
    """A CausalLM with uninitialised weights. The head is the embedding itself where the spec ties them.

    A tied table is looked up by row and multiplied. Kept in quantised form or in bfloat16 for the native library, one
    copy serves both. In other floats no layout does: on CPUs the head has a packed copy of the table, two to three
    times as fast at small batches, at the price of its bytes again (671 MB for Gemma 3 270M in float32).
    """

    def __init__(
        self,
        spec: ModelSpec,
        backend: AttentionBackend,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.spec = spec
        self._device = device
        self._embedding = Embedding(spec.vocab_size, spec.hidden_size, spec.embedding_scale, dtype=dtype, device=device)
        self._positions = (
            Embedding(spec.max_position, spec.hidden_size, 1.0, dtype=dtype, device=device)
            if spec.learned_positions
            else None
        )
        self._layers = [DecoderLayer(spec, layer, backend, dtype, device) for layer in spec.layers]
        self._norm = make_norm(spec, backend, device)
        self._head: Linear | MatrixProduct = (
            MatrixProduct(self._embedding.place, dense_product=backend.dense_product)
            if spec.tied_embeddings
            else Linear(
                spec.hidden_size,
                {"lm_head": spec.vocab_size},
                bias=spec.head_bias,
                dtype=dtype,
                device=device,
                dense_product=backend.dense_product,
            )
        )
        ropes: list[RopeSpec] = []
        for layer in spec.layers:
            if layer.rope is not None and layer.rope not in ropes:
                ropes.append(layer.rope)
        self._rotaries = [Rotary(rope, spec.head_dim, backend, device=device) for rope in ropes]
        self._rotary_of_layer = [None if layer.rope is None else ropes.index(layer.rope) for layer in spec.layers]
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

    def hidden(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        layers: Sequence[PagedLayer],
        adapters: LoraRows | None = None,
        last: LastRows | None = None,
    ) -> Residual:
        """See ``models.model.CausalLM.hidden``."""
        assert last is None or adapters is None, "rows of adapters count all tokens"
        x = self._embedding(token_ids)
        if self._positions is not None:
            x = x + self._positions(positions)
        rotations = [rotary(positions) for rotary in self._rotaries]
        scales = None if self.spec.sharpening is None else query_scales(self.spec.sharpening, positions)
        if self._replay is None or scales is not None or adapters is not None or last is not None:
            return self._after_layers(x, rotations, layers, scales, adapters, last)
        return Residual(self._replay(self._compute_layers, x, rotations, layers), self._backend)

    def logits(self, hidden: Residual) -> torch.Tensor:
        """See ``models.model.CausalLM.logits``."""
        if isinstance(self._head, Linear):
            logits = self._head.of_normed(hidden, self._norm).float()
        else:
            logits = product_of_normed(self._head, hidden, self._norm).float()
        if self.spec.logit_scale != 1.0:
            logits = logits * self.spec.logit_scale
        if self.spec.logit_softcap is not None:
            logits = torch.tanh(logits / self.spec.logit_softcap) * self.spec.logit_softcap
        return logits

    def greedy(self, hidden: Residual) -> torch.Tensor:
        """See ``models.model.CausalLM.greedy``."""
        if self.spec.logit_scale != 1.0 or self.spec.logit_softcap is not None:
            return self.logits(hidden).argmax(dim=-1)  # what is scaled and capped may be equal where it was not before
        if isinstance(self._head, Linear):
            return self._head.argmax_of_normed(hidden, self._norm)
        return argmax_of_normed(self._head, hidden, self._norm)

    def normed(self, hidden: Residual) -> torch.Tensor:
        """See ``models.model.CausalLM.normed``."""
        return hidden.normed(self._norm).float()

    def _compute_all(
        self, x: torch.Tensor, rotations: Sequence[Rotation], layers: Sequence[PagedLayer]
    ) -> torch.Tensor:
        return self._after_layers(x, rotations, layers).total()

    def _after_layers(
        self,
        x: torch.Tensor,
        rotations: Sequence[Rotation],
        layers: Sequence[PagedLayer],
        scales: torch.Tensor | None = None,
        adapters: LoraRows | None = None,
        last: LastRows | None = None,
    ) -> Residual:
        residual = Residual(x, self._backend, adapters=adapters)
        for layer, rotary, paged in zip(self._layers, self._rotary_of_layer, layers, strict=True):
            wanted = last if layer is self._layers[-1] else None
            layer(residual, None if rotary is None else rotations[rotary], paged, scales, wanted)
        return residual

    def projections(self) -> Mapping[str, LoraPlace]:
        """See ``models.model.CausalLM.projections``."""
        return {
            name: place
            for index, layer in enumerate(self._layers)
            for name, place in layer.projections(f"model.layers.{index}.")
        }

    @torch.inference_mode()
    def add_adapter(self, number: int, adapter: LoraAdapter) -> None:
        """See ``models.model.CausalLM.add_adapter``."""
        places = self.projections()
        parts: dict[LoraDeltas, list[tuple[int, LoraWeights]]] = {}
        for name, weights in adapter.weights.items():
            parts.setdefault(places[name].deltas, []).append((places[name].start, weights.to(self._device)))
        for deltas, some in parts.items():
            deltas.add(number, some)

    def remove_adapter(self, number: int) -> None:
        """See ``models.model.CausalLM.remove_adapter``."""
        for place in self.projections().values():
            place.deltas.remove(number)

    def parameters(self) -> Mapping[str, Parameter]:
        """See ``models.model.CausalLM.parameters``."""
        tied = self._head if isinstance(self._head, MatrixProduct) else None
        named = dict(self._embedding.parameters("model.embed_tokens", tied))
        if self._positions is not None:
            for name, parameter in self._positions.parameters("model.embed_positions", None):
                named[name] = replace(parameter, keep=None)  # small, and added to every vector: stays floats
        for index, layer in enumerate(self._layers):
            named.update(layer.parameters(f"model.layers.{index}."))
        named.update(self._norm.parameters("model.norm"))
        if isinstance(self._head, Linear):
            named.update(self._head.parameters(""))
        return named

    def weight_bytes(self) -> int:
        """See ``models.model.CausalLM.weight_bytes``. A tied table counts twice where it was copied to be packed."""
        head = self._head.nbytes if isinstance(self._head, Linear) else self._head.copied_nbytes
        parts = [self._embedding.nbytes, self._norm.nbytes, head]
        if self._positions is not None:
            parts.append(self._positions.nbytes)
        return sum(parts) + sum(layer.nbytes for layer in self._layers)
