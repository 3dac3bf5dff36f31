"""Refusal: why the scheduler ends a request by itself, before it has its answer."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from scheduler.ledger import RequestLedger


class NeverFits(Exception):
    """The request could not run even alone in the pool."""


class RefusalReason(enum.StrEnum):
    QUEUE_FULL = "queue_full"  # refused on arrival; it may come again
    QUEUE_TIMEOUT = "queue_timeout"  # waited too long to start
    TIMEOUT = "timeout"  # its own time was over


@dataclass(frozen=True, slots=True)
class Refusal:
    """The end of one request. ``started``: it had begun to run. ``retry_after`` is in seconds, where there is a use.

    ``ledger`` is what it cost up to then; None for one that the queue had no place for.
    """

    request_id: str
    reason: RefusalReason
    message: str
    started: bool = False
    retry_after: float | None = None
    ledger: RequestLedger | None = field(default=None, compare=False)
