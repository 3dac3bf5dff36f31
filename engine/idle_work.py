"""IdleWork: what an engine does while it has no requests, a portion at a time, so that the next one hardly waits."""

from __future__ import annotations

from typing import Protocol


class IdleWork(Protocol):
    """Something that makes later requests, or later starts, faster."""

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to do; work may come back."""

    def advance(self) -> bool:
        """Do a little, some milliseconds long; whether there was anything to do."""
