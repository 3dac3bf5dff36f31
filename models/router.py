"""Router: which experts of a mixture each token goes to, and with what weights.

Computes in float32 whatever the model's dtype is, and is never quantised: a token near the border between two experts
must not change sides by rounding. Knows no experts.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from kernels.attention import AttentionBackend
from models.linear import Linear
from models.parameter import NamedParameters
from models.spec import ExpertsSpec


class Router:
    """Chooses the likeliest experts of each token (Shazeer et al., 2017)."""

    def __init__(
        self, hidden_size: int, experts: ExpertsSpec, backend: AttentionBackend, *, device: torch.device
    ) -> None:
        self._per_token = experts.per_token
        self._is_normalised = experts.is_normalised
        self._scores = Linear(
            hidden_size,
            {"router": experts.num_experts},
            bias=experts.has_bias,
            dtype=torch.float32,
            device=device,
            dense_product=backend.dense_product,
        )

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of ``x`` [num_tokens, hidden_size] int64 expert ids and their float32 weights, [num_tokens, per_token]."""
        scores = self._scores(x.float())
        if self._is_normalised:  # the softmax of those that were chosen is theirs of all, scaled to sum to 1
            chosen, expert_ids = scores.topk(self._per_token, dim=-1)
            return expert_ids, chosen.softmax(dim=-1)
        weights, expert_ids = scores.softmax(dim=-1).topk(self._per_token, dim=-1)
        return expert_ids, weights

    @property
    def nbytes(self) -> int:
        return self._scores.nbytes

    def parameters(self, prefix: str) -> NamedParameters:
        for name, parameter in self._scores.parameters(prefix):
            yield name, replace(parameter, keep=None)
