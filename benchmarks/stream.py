"""Turns the bytes of one streamed answer, stamped as they arrived, into token times and counts.

Pure: no sockets and no clock, so that the arithmetic of a measurement can be tested to the last digit. Parsing
happens after the last byte, so that it cannot delay a stamp. Invariant: a record has either an error or at least one
token time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

ERROR_LENGTH = 200


@dataclass(frozen=True)
class Arrival:
    """Bytes as one read gave them. ``time`` is in seconds on the client's monotonic clock."""

    time: float
    data: bytes


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """What one request measured.

    ``sent`` and ``chunk_times`` are seconds on one clock; a chunk is a server-sent event that carries output, of one
    token or of several. ``prompt_tokens`` is None where the server reports no usage; ``cached_tokens`` is then 0.
    """

    sent: float
    chunk_times: tuple[float, ...] = ()
    output_tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    error: str | None = None


def parse_stream(sent: float, arrivals: Sequence[Arrival]) -> RequestRecord:
    """Read a complete answer. An event counts at the time its last byte arrived; without usage, a chunk is a token."""
    times: list[float] = []
    usage: Mapping[str, Any] = {}
    done = False
    for time, data in _events(arrivals):
        if data == b"[DONE]":
            done = True
            continue
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            return failed(sent, f"not JSON: {data!r}")
        if not isinstance(event, dict):
            return failed(sent, f"not a JSON object: {data!r}")
        if event.get("error"):
            return failed(sent, str(event["error"]))
        usage = event.get("usage") or usage
        if any(_has_output(choice) for choice in event.get("choices") or ()):
            times.append(time)
    if not times:
        return failed(sent, "the stream held no tokens")
    if not done:
        return failed(sent, "the stream broke off before data: [DONE]")
    details = usage.get("prompt_tokens_details") or {}
    return RequestRecord(
        sent=sent,
        chunk_times=tuple(times),
        output_tokens=usage.get("completion_tokens") or len(times),
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=details.get("cached_tokens") or 0,
    )


def failed(sent: float, error: str) -> RequestRecord:
    """The record of a request that gave no usable answer."""
    return RequestRecord(sent=sent, error=error[:ERROR_LENGTH])


def _events(arrivals: Sequence[Arrival]) -> Iterator[tuple[float, bytes]]:
    """The payload of each ``data:`` line, with the time its line end arrived."""
    rest = b""
    for arrival in arrivals:
        *lines, rest = (rest + arrival.data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield arrival.time, line[5:].strip()


def _has_output(choice: Mapping[str, Any]) -> bool:
    """Whether a choice carries output. An empty text counts, since a token can be half a character, but not a chat's
    opening role or a bare finish reason.
    """
    if "delta" in choice:
        return bool(choice["delta"].get("content"))
    return bool(choice.get("text")) or choice.get("finish_reason") is None
