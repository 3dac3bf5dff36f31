"""RequestRecord: what there is to tell of one API request, from its arrival to its last ledger.

Filled by whoever learns something, read once the request is over. Knows counts, times and ids. Invariants: it never
holds a text, a token or a key; no client can make it grow beyond one entry for each sequence.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from engine.messages import Ledger, RequestDelta
from scheduler.request import FinishReason
from server.tenant import NO_TENANT

CLIENT_CLOSED_REQUEST = 499


class Outcome(enum.StrEnum):
    """What became of an API request. ``OK``: it was answered, and was none that generates."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REFUSED = "refused"
    OK = "ok"


class TokenCounts(Protocol):
    """Tokens of all sequences, as the API counts them."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def completion_tokens(self) -> int: ...

    @property
    def cached_tokens(self) -> int: ...


class Progress(Protocol):
    """What an answer consists of so far. ``first_token_at`` is on the clock of ``time.monotonic``."""

    @property
    def usage(self) -> TokenCounts: ...

    @property
    def first_token_at(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """The progress of a request that is answered by no tokens."""

    usage: TokenCounts
    first_token_at: float | None = None


@dataclass(slots=True, eq=False)
class SequenceRecord:
    """One sequence. ``finish_reason`` is what its client was told, None where that was nothing.

    ``ended`` is when the engine's last word of it came, with the ``ledger``. Times are of ``time.monotonic``.
    """

    number: int
    begun: float
    finish_reason: FinishReason | None = None
    ended: float | None = None
    ledger: Ledger | None = None

    def end(self, last: RequestDelta) -> None:
        self.ended, self.ledger = time.monotonic(), last.ledger


@dataclass(slots=True, eq=False, kw_only=True)
class RequestRecord:
    """One API request. ``arrived`` is on the clock of ``time.monotonic``, ``arrived_ns`` the same moment since 1970.

    ``own_id`` is the server's, ``shown_id`` the one that the client knows. ``route`` is the path's pattern, None for a
    path that is none. ``error_code`` says what was wrong, if anything was. ``trace_headers`` are traceparent and
    tracestate, as they came. ``expect`` is told of each sequence that begins.
    """

    method: str
    path: str
    scheme: str = "http"
    trace_headers: dict[str, str] = field(default_factory=dict)
    arrived: float = field(default_factory=time.monotonic)
    arrived_ns: int = field(default_factory=time.time_ns)
    expect: Callable[[str, RequestRecord], None] = lambda name, record: None
    own_id: str | None = None
    shown_id: str | None = None
    tenant: str = NO_TENANT
    model: str | None = None
    route: str | None = None
    streams: bool = False
    status: int | None = None
    error_code: str | None = None
    progress: Progress | None = None
    sequences: dict[str, SequenceRecord] = field(default_factory=dict)
    ended: float | None = None
    trace_id: str | None = None

    def begin_sequence(self, name: str, number: int) -> None:
        """A sequence goes to the engine."""
        self.sequences[name] = SequenceRecord(number, time.monotonic())
        self.expect(name, self)

    @property
    def is_complete(self) -> bool:
        """Whether the engine has said its last word of every sequence."""
        return all(one.ended is not None for one in self.sequences.values())

    @property
    def ledgers(self) -> list[Ledger]:
        """Those that are known, in the order of the sequences."""
        return [one.ledger for one in self.sequences.values() if one.ledger is not None]

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens read from pages."""
        if isinstance(self.progress, PromptProgress):
            return sum(one.cached_tokens for one in self.ledgers)  # nothing else tells
        return 0 if self.progress is None else self.progress.usage.cached_tokens

    @property
    def finish_reasons(self) -> list[FinishReason]:
        """Of the sequences whose client was told one."""
        return [one.finish_reason for one in self.sequences.values() if one.finish_reason is not None]

    @property
    def outcome(self) -> Outcome:
        status = self.status
        if status is None or status == CLIENT_CLOSED_REQUEST:
            return Outcome.ABORT
        if status >= 400:
            return Outcome.REFUSED if status < 500 else Outcome.ERROR
        if self.error_code is not None:
            return Outcome.ERROR  # in the middle of a stream
        if not self.sequences:
            return Outcome.OK
        reasons = self.finish_reasons
        if len(reasons) < len(self.sequences):
            return Outcome.ABORT
        return Outcome.LENGTH if FinishReason.LENGTH in reasons else Outcome.STOP

    @property
    def total_seconds(self) -> float:
        """From arrival to the end of the answer."""
        return (self.ended or time.monotonic()) - self.arrived

    @property
    def first_token_seconds(self) -> float | None:
        """From arrival to the first token of any sequence."""
        first = None if self.progress is None else self.progress.first_token_at
        return None if first is None else first - self.arrived

    @property
    def queue_seconds(self) -> float | None:
        """Of the sequence that took longest, as the next two."""
        return _longest(one.queue_seconds for one in self.ledgers)

    @property
    def prefill_seconds(self) -> float | None:
        return _longest(one.prefill_seconds for one in self.ledgers)

    @property
    def decode_seconds(self) -> float | None:
        return _longest(one.decode_seconds for one in self.ledgers)


def _longest(seconds: Iterable[float | None]) -> float | None:
    return max((one for one in seconds if one is not None), default=None)
