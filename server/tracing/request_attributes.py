"""What a request's server span says of it.

Names are those of the OpenTelemetry semantic conventions, for HTTP servers and for generative AI (version 1.41), and
``octavo.*`` for what they have none for. Invariant: nothing a client wrote is among them, but for the id it chose and
the path it asked for.
"""

from __future__ import annotations

from opentelemetry.util.types import AttributeValue

from server.observation.ledger_sum import LedgerSum
from server.observation.request_record import RequestRecord

PROVIDER = "octavo"
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
MAX_PATH_CHARACTERS = 200

Attributes = dict[str, AttributeValue]


def span_name(record: RequestRecord) -> str:
    return record.method if record.route is None else f"{record.method} {record.route}"


def request_attributes(record: RequestRecord) -> Attributes:
    """All that is known; nothing is there for what is not."""
    attributes: dict[str, AttributeValue | None] = {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "url.path": record.path[:MAX_PATH_CHARACTERS],
        "url.scheme": record.scheme,
        "error.type": record.error_code,
        "octavo.request.id": record.shown_id,
        "octavo.tenant": record.tenant or None,
        "octavo.outcome": record.outcome.value,
    }
    operation = OPERATIONS.get(record.route or "") if record.method == "POST" else None
    if operation is not None:
        attributes |= {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": record.model,
        }
    if record.progress is not None:
        attributes |= _answer(record)
    return {name: value for name, value in attributes.items() if value is not None}


def _answer(record: RequestRecord) -> dict[str, AttributeValue | None]:
    assert record.progress is not None
    usage, ledger = record.progress.usage, LedgerSum.of(record.ledgers)
    return {
        "gen_ai.response.id": record.own_id,
        "gen_ai.response.model": record.model,
        "gen_ai.request.stream": record.streams,
        "gen_ai.response.finish_reasons": [reason.value for reason in record.finish_reasons] or None,
        "gen_ai.response.time_to_first_chunk": record.first_token_seconds,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "octavo.sequences": len(record.sequences),
        "octavo.peak_pages": ledger.peak_pages,
        "octavo.page_seconds": ledger.page_seconds,
        "octavo.recomputed_tokens": ledger.recomputed_tokens,
        "octavo.preemptions": ledger.preemptions,
        "octavo.draft_tokens": ledger.draft_tokens,
        "octavo.accepted_draft_tokens": ledger.accepted_draft_tokens,
    }
