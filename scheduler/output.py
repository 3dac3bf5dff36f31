"""TokenOutput: what a step gave one request."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.request import FinishReason, Request


class TokenOutput(NamedTuple):
    """The next token of a request, and the reason if it ended. ``accepted`` are the drafts that stand before it.

    None where it ended with its prompt.
    """

    request: Request
    token_id: int | None
    finish_reason: FinishReason | None
    accepted: tuple[int, ...] = ()
