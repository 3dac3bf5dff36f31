"""IdleWork: what an engine does while it has no requests, a portion at a time, so that the next one hardly waits."""

from __future__ import annotations

from typing import Protocol


class IdleWork(Protocol):
    """Something that makes later requests, or later starts, faster."""

    @property
    def due(self) -> float | None:
        """Seconds until `advance` is worth a call, 0 for now; None where there is nothing to do until a step is run."""

    def advance(self) -> bool:
        """Do a little, some milliseconds long; whether there was anything to do."""
