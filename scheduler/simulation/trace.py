"""Traces: what clients ask for and when, one JSON object a line, in order of arrival.

    {"arrival": 0.25, "prompt_tokens": 180, "output_tokens": 40, "max_tokens": 256, "tenant": "a"}

A line is read when it is needed, so that a trace may be longer than memory. It knows lengths, not texts: requests with
the same ``prefix_id`` begin with the same tokens, all others share nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class TraceError(Exception):
    """A line that cannot be used; the message names its number and the field."""


class TraceRequest(NamedTuple):
    """One request. ``arrival`` in seconds; it gets ``output_tokens`` of the ``max_tokens`` that its client allowed.

    Its first ``prefix_tokens`` tokens are the same for all requests of ``prefix_id``.
    """

    arrival: float
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    prefix_id: str | None = None
    prefix_tokens: int = 0
    tenant: str = ""
    priority: int = 0


FIELDS = TraceRequest._fields
REQUIRED = ("arrival", "prompt_tokens", "output_tokens")
MAX_TOKENS = 100_000_000  # of a request: ten times the longest context there is


def read_trace(lines: Iterable[str]) -> Iterator[TraceRequest]:
    """The requests of JSONL ``lines``; empty lines are passed over. TraceError at the first line that is wrong,
    and where there is no request at all."""
    latest: float | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            request = _parse(line)
            if latest is not None and request.arrival < latest:
                raise _FieldError("arrival", f"is {request.arrival:g}, before that of an earlier line ({latest:g})")
        except _FieldError as error:
            raise TraceError(f"line {number}: {error}") from None
        latest = request.arrival
        yield request
    if latest is None:
        raise TraceError("no line of it is a request")


class _FieldError(ValueError):
    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f'"{field}" {problem}')


def _parse(line: str) -> TraceRequest:
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise _FieldError("{...}", "is expected: one JSON object a line")
    for name in fields:
        if name not in FIELDS:
            raise _FieldError(name, f"is not a field; those are {', '.join(FIELDS)}")
    for name in REQUIRED:
        if name not in fields:
            raise _FieldError(name, "is missing")
    prompt_tokens, output_tokens = _count(fields, "prompt_tokens", 1), _count(fields, "output_tokens", 1)
    max_tokens = _count(fields, "max_tokens", 1, output_tokens)
    prefix_tokens = _count(fields, "prefix_tokens", 0, 0)
    prefix_id = _text(fields, "prefix_id")
    if output_tokens > max_tokens:
        raise _FieldError("max_tokens", f"is {max_tokens}, less than the {output_tokens} of output_tokens")
    if prefix_tokens > prompt_tokens:
        raise _FieldError("prefix_tokens", f"is {prefix_tokens}, more than the {prompt_tokens} of prompt_tokens")
    if (prefix_id is None) != (not prefix_tokens):
        missing = "prefix_id" if prefix_id is None else "prefix_tokens"
        raise _FieldError(missing, "is missing: prefix_id and prefix_tokens come together")
    priority = fields.get("priority")
    if priority is not None and not _is_integer(priority):
        raise _FieldError("priority", f"is {json.dumps(priority)}, not an integer")
    return TraceRequest(
        arrival=_arrival(fields["arrival"]),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        max_tokens=max_tokens,
        prefix_id=prefix_id,
        prefix_tokens=prefix_tokens,
        tenant=_text(fields, "tenant") or "",
        priority=priority or 0,
    )


def _arrival(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= sys.float_info.max:
        raise _FieldError("arrival", f"is {json.dumps(value)}, not a number of seconds, 0 or more")
    return float(value)


def _count(fields: dict[str, object], name: str, least: int, default: int | None = None) -> int:
    value = fields.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise _FieldError(name, f"is {json.dumps(value)}, not an integer of at least {least}")
    if value > MAX_TOKENS:
        raise _FieldError(name, f"is {value}, more than {MAX_TOKENS}")
    return value


def _text(fields: dict[str, object], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise _FieldError(name, f"is {json.dumps(value)}, not a text")
    return value


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
