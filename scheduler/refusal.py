"""Refusal: why the scheduler ends a request by itself, before it has its answer."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class NeverFits(Exception):
    """The request could not run even alone in the pool."""


class RefusalReason(enum.StrEnum):
    QUEUE_FULL = "queue_full"  # refused on arrival; it may come again
    QUEUE_TIMEOUT = "queue_timeout"  # waited too long to start
    TIMEOUT = "timeout"  # its own time was over


@dataclass(frozen=True, slots=True)
class Refusal:
    """The end of one request. ``started``: it had begun to run. ``retry_after`` is in seconds, where there is a use."""

    request_id: str
    reason: RefusalReason
    message: str
    started: bool = False
    retry_after: float | None = None
