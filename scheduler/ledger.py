"""RequestLedger: what one request cost in pages and work, from its first admission to its end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from block_manager.usage import SequenceUsage
from scheduler.phases import RequestPhases
from scheduler.preemption_record import Preemption


@dataclass(slots=True)
class RequestLedger:
    """Pages over all its turns of running, and tokens that were, or were not, computed for it.

    ``preemptions`` records each time its pages were taken for another. ``held_pages`` is as of the last look.
    """

    held_pages: int = 0
    peak_pages: int = 0
    page_seconds: float = 0.0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    rotations: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    preemptions: list[Preemption] = field(default_factory=list)
    phases: RequestPhases = field(default_factory=RequestPhases)

    def close_turn(self, usage: SequenceUsage) -> None:
        """It gave its pages back."""
        self.held_pages = 0
        self.peak_pages = max(self.peak_pages, usage.peak_pages)
        self.page_seconds += usage.page_seconds

    def seen_running(self, usage: SequenceUsage) -> RequestLedger:
        """A copy that includes the turn that is still running."""
        return replace(
            self,
            held_pages=usage.held_pages,
            peak_pages=max(self.peak_pages, usage.peak_pages),
            page_seconds=self.page_seconds + usage.page_seconds,
            preemptions=list(self.preemptions),
            phases=replace(self.phases),
        )
