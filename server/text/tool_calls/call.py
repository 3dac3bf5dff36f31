"""ToolCall: one call of a tool by the model, whole and as it grows. Values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolCall:
    """``arguments`` is the text of a JSON object, or the beginning of one where the answer was cut."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of call ``index``, from 0. Its first delta has ``id`` and ``name``; the others have ``arguments`` only."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None
