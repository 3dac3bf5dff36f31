"""SchedulerCounters: totals since the start, in requests or tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from block_manager.prefix_index import MissReason
from scheduler.preemption_record import PreemptionCause, PreemptionKind
from scheduler.refusal import RefusalReason


@dataclass(slots=True)
class SchedulerCounters:
    """A prompt token is counted once, however often it is computed.

    ``missed_tokens`` are prompt tokens that had to be computed at first admission, by the reason they were not cached.
    ``drafts`` counts steps of a request that had drafts, and ``draft_tokens`` what was in them.
    ``tenant_page_seconds`` are of requests that ended.
    ``overtakes`` counts requests that started before one that waited for pages and was first.
    """

    preemptions: Counter[tuple[PreemptionKind, PreemptionCause]] = field(default_factory=Counter)
    refusals: Counter[RefusalReason] = field(default_factory=Counter)
    overtakes: int = 0
    rotations: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    missed_tokens: Counter[MissReason] = field(default_factory=Counter)
    recomputed_tokens: int = 0
    generation_tokens: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    tenant_page_seconds: dict[str, float] = field(default_factory=dict)

    def count_page_seconds(self, tenant: str, page_seconds: float) -> None:
        """A request of ``tenant`` ended."""
        self.tenant_page_seconds[tenant] = self.tenant_page_seconds.get(tenant, 0.0) + page_seconds

    @property
    def num_preemptions(self) -> int:
        """Preemptions of all kinds."""
        return self.preemptions.total()
