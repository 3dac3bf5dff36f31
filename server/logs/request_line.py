"""What is logged of an API request that is over, as a line of text or of JSON.

Counts, times, names and ids only: what a client wrote is never part of it, but for the id it chose. Invariant: that id
can neither end a line nor pass for another field of it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping

from engine.log_format import log_line
from server.observation.ledger_sum import LedgerSum
from server.observation.request_record import Outcome, RequestRecord

LOGGER = "octavo.requests"
PLAIN_WORD = re.compile(r"[A-Za-z0-9._:/+-]+")  # what needs no quotes in a line of fields
LEVELS = {Outcome.ERROR.value: "error"}

Value = str | int | float | bool | None
Fields = dict[str, Value | Mapping[str, Value] | list[str]]


def json_line(record: RequestRecord) -> bytes:
    """One object, which ends in a line break."""
    fields = request_fields(record)
    outcome = str(fields["outcome"])
    level = LEVELS.get(outcome, "info")
    message = f"{record.method} {record.route or 'no such route'} {record.status or '-'} {outcome}"
    return log_line(time.time(), level, LOGGER, message, fields) + b"\n"


def text_line(record: RequestRecord) -> bytes:
    """Fields of one line, which ends in a line break; those that are empty or nothing are left out."""
    flat: list[tuple[str, object]] = []
    for name, value in request_fields(record).items():
        if isinstance(value, Mapping):
            flat += [(f"{name}.{inner}", one) for inner, one in value.items()]
        else:
            flat.append((name, value))
    words = [f"{name}={_word(value)}" for name, value in flat if value or name == "outcome"]
    return f"octavo: request {' '.join(words)}\n".encode()


def request_fields(record: RequestRecord) -> Fields:
    """All there is to tell. Seconds are to the microsecond; None stands for what did not come to be."""
    usage = None if record.progress is None else record.progress.usage
    fields: Fields = {
        "request_id": record.shown_id,
        "id": record.own_id,
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "outcome": record.outcome.value,
        "error": record.error_code,
        "tenant": record.tenant or None,
    }
    if usage is not None:
        fields |= {
            "stream": record.streams,
            "sequences": len(record.sequences),
            "finish_reasons": [reason.value for reason in record.finish_reasons],
            "tokens": {
                "prompt": usage.prompt_tokens,
                "cached": record.cached_tokens,
                "generated": usage.completion_tokens,
            },
        }
    fields["seconds"] = _seconds(record)
    if record.sequences:
        fields["ledger"] = LedgerSum.of(record.ledgers).fields()
    if record.trace_id is not None:
        fields["trace_id"] = record.trace_id
    return fields


def _seconds(record: RequestRecord) -> dict[str, Value]:
    total: dict[str, Value] = {"total": round(record.total_seconds, 6)}
    if not record.sequences:
        return total
    parts = {
        "queue": record.queue_seconds,
        "prefill": record.prefill_seconds,
        "decode": record.decode_seconds,
        "ttft": record.first_token_seconds,
    }
    return {name: None if value is None else round(value, 6) for name, value in parts.items()} | total


def _word(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if PLAIN_WORD.fullmatch(text) else json.dumps(text)
