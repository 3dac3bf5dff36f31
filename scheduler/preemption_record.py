"""Preemption records: who gave pages to whom, how, and at what cost."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class PreemptionKind(enum.StrEnum):
    RECOMPUTE = "recompute"
    SWAP = "swap"


class PreemptionCause(enum.StrEnum):
    """What the requester wanted the pages for."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Preemption:
    """One preemption. ``at`` is on the scheduler's clock; ``requester`` is ``victim`` where it gave way to older ones.

    ``tokens_to_recompute`` is the most that is computed again: what stays in the prefix cache is found there.
    """

    at: float
    victim: str
    requester: str
    kind: PreemptionKind
    cause: PreemptionCause
    pages_freed: int
    tokens_to_recompute: int
