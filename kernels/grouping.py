"""Grouping: which rows of a step go to which expert of a mixture, and how their results become one row per token again.

Knows the router's choice, not what experts compute. Nothing here waits for a device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Grouping:
    """(token, expert) pairs sorted by expert, equals in the order of tokens.

    ``pairs`` int64 [num_rows]: the place in the flattened [num_tokens, experts_per_token] choice that sorted row i came
    from; ``expert_ids`` int64 [num_rows]: its expert; ``token_ids`` int32 [num_rows]: its token; ``offsets`` int32
    [num_experts + 1]: expert e owns the sorted rows ``offsets[e] : offsets[e + 1]``.
    """

    pairs: torch.Tensor
    expert_ids: torch.Tensor
    token_ids: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def by_expert(cls, expert_ids: torch.Tensor, num_experts: int) -> Grouping:
        """Sort the choice [num_tokens, experts_per_token] of the router, on its device, without waiting for it."""
        flat = expert_ids.reshape(-1)
        ordered, pairs = torch.sort(flat, stable=True)
        bounds = torch.arange(num_experts + 1, device=flat.device, dtype=flat.dtype)
        offsets = torch.searchsorted(ordered, bounds, out_int32=True)
        return cls(pairs, ordered, (pairs // expert_ids.shape[-1]).to(torch.int32), offsets)

    def combine(self, rows: torch.Tensor, router_weights: torch.Tensor) -> torch.Tensor:
        """Weigh and add the rows of each token, in the order of the router's choice and in float32."""
        chosen = torch.empty_like(rows)
        chosen[self.pairs] = rows
        weighed = chosen.view(*router_weights.shape, -1).float() * router_weights[..., None].float()
        return weighed.sum(dim=-2).to(rows.dtype)
