"""GET /v1/requests and /v1/requests/{id}: which requests are in flight, and why one of them waits or was preempted.

A request is the sum of its sequences, of which the first that waits speaks for it. Invariants: nobody reads of a
request that came with another key than his; a look costs the engine a bounded number of answers, between two steps.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from engine.messages import PreemptionNote, RequestExplanation
from scheduler.request import RequestStatus
from server.engine_answer import engine_answer, place_fields, token_fields
from server.errors import ApiError
from server.request_registry import InFlightRequest
from server.state import ServerState

MAX_LISTED = 50
MAX_EXPLAINED = 32  # open sequences of one request
STATUS_ORDER = (RequestStatus.RUNNING, RequestStatus.WAITING, RequestStatus.PENDING)  # the first of any speaks for all


async def list_requests(state: ServerState, request: Request) -> Response:
    """The oldest requests of the key that asks: each with its place, or that of its first open sequence."""
    tenant = state.api_keys.tenant(request.headers.get("authorization"))
    listed = state.requests.oldest(tenant, MAX_LISTED + 1)
    flights = [(one, one.open_sequence_ids[:1]) for one in listed[:MAX_LISTED]]
    explanations = iter(await _explain(state, [name for _, names in flights for name in names]))
    data = []
    for one, names in flights:
        explanation = next(explanations) if names else None
        if explanation is not None:
            data.append(
                {
                    **_names(one),
                    "status": explanation.status.value,
                    "position": explanation.position,
                    "age_seconds": _age(one),
                }
            )
    body = {"object": "list", "data": data, "has_more": len(listed) > MAX_LISTED}
    return Response(orjson.dumps(body), media_type="application/json")


async def retrieve_request(state: ServerState, request: Request, name: str) -> Response:
    """One request, by its id, the id that its client chose, or the id of one of its sequences."""
    tenant = state.api_keys.tenant(request.headers.get("authorization"))
    found = state.requests.find(tenant, name)
    if found is None:
        raise _not_found(name)
    sequence_ids = [name] if name in found.sequence_ids else found.open_sequence_ids[:MAX_EXPLAINED]
    explanations = [one for one in await _explain(state, sequence_ids) if one is not None]
    if not explanations:
        raise _not_found(name)
    return Response(orjson.dumps(_body(state, found, explanations)), media_type="application/json")


def _body(state: ServerState, found: InFlightRequest, explanations: Sequence[RequestExplanation]) -> dict[str, object]:
    waiting = [one for one in explanations if one.status is RequestStatus.WAITING]
    running = [one for one in explanations if one.status is RequestStatus.RUNNING]
    [first, *_] = waiting or running or explanations
    statuses = Counter(one.status.value for one in explanations)
    status = next(one for one in STATUS_ORDER if one.value in statuses)
    notes = list(chain.from_iterable(one.preemptions for one in explanations))
    return {
        **_names(found),
        "object": "request",
        "status": status.value,
        "age_seconds": _age(found),
        "text": _text(first, state.requests.shown(found.tenant, first.preemptions)),
        **place_fields(first),
        "tokens": token_fields(explanations),
        "sequences": {one.value: statuses[one.value] for one in STATUS_ORDER},
        "preemptions": msgspec.to_builtins(state.requests.shown(found.tenant, notes)),
    }


def _text(explanation: RequestExplanation, shown: Sequence[PreemptionNote]) -> str:
    """The engine's sentences, without ids that are not ``shown``."""
    text = explanation.text
    hidden = {note.requester: one.requester for note, one in zip(explanation.preemptions, shown, strict=True)}
    for requester in sorted(hidden, key=len, reverse=True):  # one id may begin like another
        text = text.replace(requester, hidden[requester])
    return text


def _names(one: InFlightRequest) -> dict[str, object]:
    return {"id": one.request_id.own, "request_id": one.request_id.shown}


def _age(one: InFlightRequest) -> float:
    return round(time.monotonic() - one.arrived, 3)


async def _explain(state: ServerState, sequence_ids: Sequence[str]) -> list[RequestExplanation | None]:
    """What the engine says of each, asked all at once, so that one pause between steps is enough."""
    return await engine_answer(asyncio.gather(*(state.client.explain(name) for name in sequence_ids)))


def _not_found(name: str) -> ApiError:
    return ApiError(404, f"no request {name!r} of yours is in flight", code="request_not_found")
