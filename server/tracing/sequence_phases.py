"""The phases of one sequence on the clock of the API process, made of the durations in its ledger.

    begun ──queue──► ──prefill──► ──decode──► ended

The engine's durations end where its last word came; what lies before them, back to when the sequence was sent, is time
in the queue. Invariants: phases follow each other without a gap and lie within their request; a moment of the engine is
within one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.messages import Ledger
from server.observation.request_record import SequenceRecord

QUEUE, PREFILL, DECODE = "queue", "prefill", "decode"


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a sequence's time, on the clock of ``time.monotonic``."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class SequencePhases:
    """``phases`` in their order; ``arrived`` is when the engine got the sequence."""

    phases: tuple[Phase, ...]
    arrived: float

    @classmethod
    def of(cls, sequence: SequenceRecord, ledger: Ledger, answer_ended: float) -> SequencePhases:
        """Those the sequence came to. What it did after its answer had ended belongs to nobody's request."""
        ended = answer_ended if sequence.ended is None else sequence.ended
        named = (QUEUE, ledger.queue_seconds), (PREFILL, ledger.prefill_seconds), (DECODE, ledger.decode_seconds)
        durations = [(name, seconds) for name, seconds in named if seconds is not None]
        arrived = ended - sum(seconds for _, seconds in durations)
        last = min(ended, answer_ended)
        phases: list[Phase] = []
        start, moment = min(sequence.begun, last), arrived
        for name, seconds in durations:
            moment += seconds
            end = max(start, min(moment, last))
            phases.append(Phase(name, start, end))
            start = end
        return cls(tuple(phases), arrived)

    def at(self, seconds: float) -> tuple[Phase, float]:
        """The phase, and the moment in it, that is so many seconds after the engine got the sequence."""
        moment = self.arrived + seconds
        phase = next((one for one in self.phases if moment <= one.end), self.phases[-1])
        return phase, max(phase.start, min(moment, phase.end))
