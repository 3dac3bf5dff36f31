"""TokenSampler: one token per row of logits, drawn where the logits are.

The same rule as ``engine.sampler``, by parameters that travel with the step, so that no token has to reach the host
before the next step reads it.
"""

from __future__ import annotations

from typing import Protocol

import torch

from engine.step_buffers import DrawSections


class TokenSampler(Protocol):
    """Draws on a device, without waiting for it."""

    def sample(self, logits: torch.Tensor, draws: DrawSections[torch.Tensor]) -> torch.Tensor:
        """Int64 [num_rows]: a token id per row of ``logits`` [num_rows, vocab]; may be captured in a graph."""


class KernelSampler:
    """Draws with the Triton kernels of ``kernels.gpu.sampling``, imported when it is made."""

    def __init__(self) -> None:
        from kernels.gpu import sampling

        self._kernels = sampling

    def sample(self, logits: torch.Tensor, draws: DrawSections[torch.Tensor]) -> torch.Tensor:
        inputs = self._kernels.SamplingInputs(
            temperature=draws.temperature,
            top_k=draws.top_k,
            top_p=draws.top_p,
            min_p=draws.min_p,
            seed=draws.seed,
            output_index=draws.output_index,
        )
        return self._kernels.sample(logits, inputs)
