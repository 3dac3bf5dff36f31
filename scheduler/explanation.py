"""Explanation: the plain answer to "why does this request wait, and why was it preempted?"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.preemption_record import Preemption
from scheduler.request import Request, RequestStatus, WaitReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Where a request stands. Seconds are from now, or up to now; ``position`` is 1 for the one that goes first.

    ``wanted_pages`` are those it needs to start, those that running requests will need included.
    ``arrived`` is on the scheduler's clock.
    """

    request_id: str
    status: RequestStatus
    seconds_since_arrival: float
    arrived: float = 0.0
    position: int | None = None
    expected_start_seconds: float | None = None
    wait_reason: WaitReason | None = None
    wanted_pages: int = 0
    available_pages: int = 0
    num_tokens: int = 0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_overtakers: int = 0
    preemptions: Sequence[Preemption] = ()

    @classmethod
    def of(
        cls,
        request: Request,
        *,
        seconds_since_arrival: float,
        position: int | None,
        expected_start_seconds: float | None,
        wait_reason: WaitReason | None,
        available_pages: int,
    ) -> Explanation:
        """With what the request itself knows."""
        return cls(
            request_id=request.request_id,
            status=request.status,
            arrived=request.arrived,
            seconds_since_arrival=seconds_since_arrival,
            position=position,
            expected_start_seconds=expected_start_seconds,
            wait_reason=wait_reason,
            wanted_pages=request.wanted_pages,
            available_pages=available_pages,
            num_tokens=request.num_tokens,
            num_computed_tokens=request.num_computed_tokens,
            num_output_tokens=request.num_output_tokens,
            num_overtakers=request.num_overtakers,
            preemptions=tuple(request.ledger.preemptions),
        )

    def text(self) -> str:
        """One or a few sentences."""
        sentences = [self._state()]
        for one in self.preemptions:
            whom = "older requests kept their pages" if one.requester == one.victim else f"for {one.requester}"
            lost = "its pages moved to host memory"
            if one.kind == "recompute":
                lost = f"up to {one.tokens_to_recompute} tokens are computed again"
            sentences.append(f"It was preempted ({whom}, {one.cause}): {one.pages_freed} pages were freed and {lost}.")
        return " ".join(sentences)

    def _state(self) -> str:
        if self.status is RequestStatus.RUNNING:
            return (
                f"It is running: {self.num_computed_tokens} of {self.num_tokens} tokens are computed, "
                f"{self.num_output_tokens} were generated."
            )
        if self.status is RequestStatus.PENDING:
            return "It waits for the first sample of its prompt to be computed, whose pages it will share."
        why = {
            WaitReason.PAGES: f"it needs {self.wanted_pages} pages, {self.available_pages} are available",
            WaitReason.SEQUENCES: "as many sequences run as may (--max-num-seqs)",
            WaitReason.TOKENS: "the tokens of each step are used up by requests before it",
            WaitReason.PREEMPTION: "running requests are short of pages, so nobody starts",
            WaitReason.BEHIND: "requests before it go first",
        }[self.wait_reason or WaitReason.BEHIND]
        when = ""
        if self.expected_start_seconds is not None:
            when = f"; it is expected to start in {self.expected_start_seconds:.1f} s"
        return f"It waits at position {self.position} for {self.seconds_since_arrival:.1f} s: {why}{when}."
