"""RequestJournal: hands each API request to its observers once, when all there is to tell of it is known.

That is when the answer is over and the engine has said its last word of every sequence. A sequence that the server
ended (its client left, a stop string matched) is over in the engine a step later; should that word not come, because
the engine died, the request is handed on without it. Invariants: no answer waits for this; each request is handed on
exactly once; nothing is kept of one that was.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from engine.messages import RequestDelta
from server.observation.request_record import RequestRecord

PATIENCE_SECONDS = 5.0  # for the engine's last word: more than the longest step takes

logger = logging.getLogger("octavo.server")


class RequestObserver(Protocol):
    """Told of each request that is over, in the event loop: be quick."""

    def finished(self, record: RequestRecord) -> None: ...

    def close(self) -> None:
        """Write what is left, within a second or a few. May block; nothing is told any more."""


class RequestJournal:
    """The requests of one server. Observers are told in the order in which they were added."""

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._observers: list[RequestObserver] = []
        self._expected: dict[str, RequestRecord] = {}  # by sequences that the engine has not ended
        self._waiting: dict[RequestRecord, asyncio.TimerHandle] = {}  # answers are over, sequences are not

    def add(self, observer: RequestObserver) -> None:
        self._observers.append(observer)

    def expect(self, name: str, record: RequestRecord) -> None:
        """The engine will say a last word of this sequence."""
        if self._observers:
            self._expected[name] = record

    def sequence_ended(self, last: RequestDelta) -> None:
        """The engine's last word of a sequence."""
        record = self._expected.pop(last.request_id, None)
        if record is None:
            return
        record.sequences[last.request_id].end(last)
        if record in self._waiting and record.is_complete:
            self._hand_on(record)

    def answer_ended(self, record: RequestRecord) -> None:
        """The answer is over, whether anybody read it or not."""
        if not self._observers:
            return
        if record.is_complete:
            self._hand_on(record)
        else:
            loop = asyncio.get_running_loop()
            self._waiting[record] = loop.call_later(self._patience, self._hand_on, record)

    def close(self) -> None:
        """Hand on what still waits: no engine will speak any more."""
        for record in list(self._waiting):
            self._hand_on(record)

    def _hand_on(self, record: RequestRecord) -> None:
        if (timer := self._waiting.pop(record, None)) is not None:
            timer.cancel()
        for name in record.sequences:
            self._expected.pop(name, None)
        for observer in self._observers:
            try:
                observer.finished(record)
            except Exception:
                logger.exception("an observer of finished requests failed")
