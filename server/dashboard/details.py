"""GET /dashboard/pages/{page} and /dashboard/requests/{id}: one page, one sequence, as the engine knows them now.

Whoever holds the admin key sees the requests of all tenants, though never their prompts, answers or keys.
"""

from __future__ import annotations

import msgspec
import orjson
from starlette.responses import Response

from server.engine_answer import engine_answer, place_fields, token_fields
from server.errors import MAX_SHOWN_CHARACTERS, ApiError
from server.state import ServerState

NO_STORE = {"cache-control": "no-store"}


async def page_detail(state: ServerState, page: str) -> Response:
    """Who holds a page, how full it is, and since when nobody does."""
    number = int(page) if page.isascii() and page.isdecimal() and len(page) < 10 else 0  # which is no page
    row = await engine_answer(state.client.read_page(number))
    if row is None:
        raise ApiError(404, f"there is no page {page[:MAX_SHOWN_CHARACTERS]!r}", code="page_not_found")
    seconds = row.cached_seconds
    return _answer(
        {
            "page": row.page,
            "state": row.state,
            "group": row.group,
            "owners": [{"id": name, "request_id": state.requests.shown_id(name)} for name in row.owners],
            "ref_count": row.ref_count,
            "fill": row.fill,
            "hash": row.hash_prefix,
            "cached_seconds": None if seconds is None else round(seconds, 3),
        }
    )


async def request_detail(state: ServerState, name: str) -> Response:
    """Where a sequence stands and why, what it has cost so far, and its pages in the order of positions."""
    report = await engine_answer(state.client.read_sequence(name))
    if report is None:
        shown = name[:MAX_SHOWN_CHARACTERS]
        raise ApiError(404, f"no sequence {shown!r} is in flight", code="request_not_found")
    explanation = report.explanation
    return _answer(
        {
            "id": explanation.request_id,
            "request_id": state.requests.shown_id(explanation.request_id),
            "tenant": state.requests.tenant_of(explanation.request_id),
            "status": explanation.status.value,
            "age_seconds": round(explanation.seconds_since_arrival, 3),
            "text": explanation.text,
            **place_fields(explanation),
            "tokens": token_fields([explanation]),
            "ledger": msgspec.to_builtins(report.ledger),
            "pages": report.pages,
        }
    )


def _answer(body: dict[str, object]) -> Response:
    return Response(orjson.dumps(body), headers=NO_STORE, media_type="application/json")
