"""CausalLM: what the runner sees of a model.

Models know tensors, positions and pages; nothing of requests, sampling, files or formats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from kernels.attention import LastRows, PagedLayer
from models.lora import LoraAdapter, LoraPlace, LoraRows
from models.parameter import Parameter
from models.residual import Residual
from models.spec import ModelSpec


class CausalLM(Protocol):
    """A decoder over paged KV memory."""

    spec: ModelSpec

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        layers: Sequence[PagedLayer],
        logits_rows: torch.Tensor,
    ) -> torch.Tensor:
        """The `logits` of those tokens of a step whose indices are in ``logits_rows``, int64 [num_rows]."""

    def hidden(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        layers: Sequence[PagedLayer],
        adapters: LoraRows | None = None,
        last: LastRows | None = None,
    ) -> Residual:
        """Run one ragged step and store its keys and values; the states of all its tokens before the last norm.

        With ``last`` the states of these alone, for which the last layer computes no others. Not beside adapters.

        ``token_ids`` and ``positions`` are int64 [num_tokens], ``layers`` has one PagedLayer per layer of the spec.
        ``adapters``: the tokens that use one, of those that were added. The caller holds ``torch.inference_mode``, here
        and below.
        """

    def logits(self, hidden: Residual) -> torch.Tensor:
        """Float32 [num_rows, vocab_size] of some tokens' states."""

    def greedy(self, hidden: Residual) -> torch.Tensor:
        """Of each row of `logits` only the place of its largest, the first of equal ones, int64 [num_rows].

        Cheaper where the logits need not be stored for that.
        """

    def normed(self, hidden: Residual) -> torch.Tensor:
        """Float32 [num_rows, hidden_size]: the states of some tokens after the last norm, as the head reads them."""

    def projections(self) -> Mapping[str, LoraPlace]:
        """Where adapters can change the model, by the names of parameters without ".weight"."""

    def add_adapter(self, number: int, adapter: LoraAdapter) -> None:
        """Let steps use an adapter, whose names and shapes are those of `projections`, under a number of its own."""

    def remove_adapter(self, number: int) -> None:
        """Let go of an adapter, if there is one of this number."""

    def parameters(self) -> Mapping[str, Parameter]:
        """Every weight that can be filled, under the name it has in Hugging Face checkpoints; before loading, all."""

    def weight_bytes(self) -> int:
        """Memory of all weights, in bytes; parts of a fused weight count once, copies of one in another form again."""
