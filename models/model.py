"""CausalLM: what the runner sees of a model. Parameter: how the loader reaches its weights.

Models know tensors, positions and pages; nothing of requests, sampling, files or formats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from kernels.attention import PagedLayer
from kernels.products import KeptMatrix
from models.spec import ModelSpec

if TYPE_CHECKING:
    from models.layers import Residual


@dataclass(frozen=True, slots=True)
class Parameter:
    """A place for one tensor of a checkpoint.

    ``view`` is where it goes, often a slice of a fused weight; its memory is taken when it is first asked for.
    ``shape`` is the shape it has, there and in a checkpoint. ``plus_one`` marks RMSNorm weights of Gemma: Hugging Face
    files store them less one, GGUF files as they are used. ``when_filled`` is to be called once, when all parameters
    that carry it have their values: the model may then keep them in a faster form, and whoever holds a view holds
    memory that nobody needs.

    ``keep``, where there is one, takes the weight in quantised form instead of values in ``view``; either all
    parameters that carry the same ``when_filled`` are kept, or none.
    """

    place: Callable[[], torch.Tensor]
    shape: tuple[int, ...]
    plus_one: bool = False
    when_filled: Callable[[], None] | None = None
    keep: Callable[[KeptMatrix], None] | None = None

    @classmethod
    def of(cls, tensor: torch.Tensor, *, plus_one: bool = False) -> Parameter:
        """The place of a tensor that is there and stays as it is."""
        return cls(lambda: tensor, tuple(tensor.shape), plus_one)

    @property
    def view(self) -> torch.Tensor:
        return self.place()

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


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

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor, layers: Sequence[PagedLayer]) -> Residual:
        """Run one ragged step and store its keys and values; the states of all its tokens before the last norm.

        ``token_ids`` and ``positions`` are int64 [num_tokens], ``layers`` has one PagedLayer per layer of the spec.
        The caller holds ``torch.inference_mode``, here and below.
        """

    def logits(self, hidden: Residual) -> torch.Tensor:
        """Float32 [num_rows, vocab_size] of some tokens' states."""

    def greedy(self, hidden: Residual) -> torch.Tensor:
        """Of each row of `logits` only the place of its largest, the first of equal ones, int64 [num_rows].

        Cheaper where the logits need not be stored for that.
        """

    def normed(self, hidden: Residual) -> torch.Tensor:
        """Float32 [num_rows, hidden_size]: the states of some tokens after the last norm, as the head reads them."""

    def parameters(self) -> Mapping[str, Parameter]:
        """Every weight that can be filled, under the name it has in Hugging Face checkpoints; before loading, all."""

    def weight_bytes(self) -> int:
        """Memory of all weights, in bytes; parts of a fused weight count once, copies of one in another form again."""
