"""Residual: the hidden states of a step, and the branch that is still to be added to them."""

from __future__ import annotations

import torch

from kernels.attention import AttentionBackend
from models.lora import LoraRows
from models.norms import Norm


class Residual:
    """The hidden states [num_tokens, hidden_size] of a step: layers read them normed and add their branches to them.

    A branch is added by whoever reads the states next, so that a sum and the norm after it can be one kernel.
    ``adapters`` says which of the tokens use one; None: none does.
    """

    def __init__(
        self,
        x: torch.Tensor,
        backend: AttentionBackend,
        branch: torch.Tensor | None = None,
        adapters: LoraRows | None = None,
    ) -> None:
        """The states are ``x``, which may be overwritten, plus ``branch`` if there is one."""
        self.adapters = adapters
        self._x = x
        self._backend = backend
        self._branch = branch

    def add(self, branch: torch.Tensor) -> None:
        self._x, self._branch = self.total(), branch

    def add_normed(self, branch: torch.Tensor, norm: Norm) -> None:
        """Add ``norm(branch)``."""
        self._x = norm.added_to(self.total(), branch)

    def normed(self, norm: Norm) -> torch.Tensor:
        if self._branch is None:
            return norm(self._x)
        normed, self._x = norm.of_sum(self._x, self._branch)
        self._branch = None
        return normed

    def total(self) -> torch.Tensor:
        if self._branch is not None:
            self._x, self._branch = self._backend.add(self._x, self._branch), None
        return self._x

    def narrow(self, row_ids: torch.Tensor) -> None:
        """Forget all tokens but these; of states that no adapter changes."""
        self._x = self._x[row_ids]
        if self._branch is not None:
            self._branch = self._branch[row_ids]

    def rows(self, row_ids: torch.Tensor) -> Residual:
        """Those of some tokens."""
        return Residual(self._x[row_ids], self._backend, None if self._branch is None else self._branch[row_ids])

    def span(self, start: int, end: int) -> Residual:
        """Copies of those of the tokens ``start`` to ``end - 1``; a lone one twice."""
        copies = (2 if end - start == 1 else 1, 1)
        branch = None if self._branch is None else self._branch[start:end].repeat(copies)
        return Residual(self._x[start:end].repeat(copies), self._backend, branch)
