"""CausalLM: what the runner sees of a model. Parameter: how the loader reaches its weights.

Models know tensors, positions and pages; nothing of requests, sampling, files or formats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.attention import PagedLayer
from models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Parameter:
    """A place for one tensor of a checkpoint.

    ``view`` is where it goes, often a slice of a fused weight. ``shape`` is the shape it has in a checkpoint, which may
    broadcast to ``view``. ``plus_one`` marks RMSNorm weights of Gemma: Hugging Face files store them less one, GGUF
    files as they are used.
    """

    view: torch.Tensor
    shape: tuple[int, ...]
    plus_one: bool = False


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
        """Run one ragged step and store its keys and values.

        ``token_ids`` and ``positions`` are int64 [num_tokens], ``layers`` has one PagedLayer per layer of the spec,
        ``logits_rows`` is int64 [num_rows], indices of the tokens whose logits are wanted. Returns float32
        [num_rows, vocab_size]. The caller holds ``torch.inference_mode``.
        """

    def parameters(self) -> Mapping[str, Parameter]:
        """Every weight, under the name it has in Hugging Face checkpoints."""
