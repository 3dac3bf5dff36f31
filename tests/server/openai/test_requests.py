"""GET /v1/requests and /v1/requests/{id}: what a client can learn of its requests in flight, and of no other's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.client import EngineState
from engine.messages import PreemptionNote, RequestExplanation
from scheduler.request import RequestStatus, WaitReason
from server import engine_answer
from server.app import create_app
from server.auth import ApiKeys
from server.openai.requests import MAX_EXPLAINED, MAX_LISTED
from server.request_registry import ANOTHER_REQUEST

KEYS = ("first-key", "second-key")


def explanation(request_id: str, **changes: Any) -> RequestExplanation:
    """A request that waits at place 4 for pages; ``changes`` are of that."""
    fields: dict[str, Any] = {
        "status": RequestStatus.WAITING,
        "text": "It waits at position 4.",
        "seconds_since_arrival": 1.0,
        "position": 4,
        "expected_start_seconds": 2.50049,
        "wait_reason": WaitReason.PAGES,
        "wanted_pages": 9,
        "available_pages": 3,
        "num_tokens": 20,
        "num_computed_tokens": 0,
        "num_output_tokens": 0,
        "num_overtakers": 0,
        "preemptions": [],
    }
    return RequestExplanation(request_id=request_id, **(fields | changes))


def running(request_id: str, **changes: Any) -> RequestExplanation:
    fields = {
        "status": RequestStatus.RUNNING,
        "text": "It is running.",
        "position": None,
        "expected_start_seconds": None,
        "wait_reason": None,
        "num_computed_tokens": 22,
        "num_output_tokens": 3,
    }
    return explanation(request_id, **(fields | changes))


def note(requester: str) -> PreemptionNote:
    return PreemptionNote(
        requester=requester, seconds=2.25, kind="swap", cause="prefill", pages_freed=5, tokens_to_recompute=0
    )


class Flights:
    """Requests that stay in flight until the test is over."""

    def __init__(self, api, engine) -> None:
        self._api = api
        self._engine = engine
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self, headers: dict[str, str] | None = None, **fields: Any) -> list[str]:
        """Send a completion; the ids of its sequences."""
        num_before = len(self._engine.requests)
        num_prompts = len(fields.get("prompt", [0]))
        self._engine.scripts += [[asyncio.Event()] for _ in range(num_prompts * fields.get("n", 1))]
        body = {"model": self._api.model, "prompt": "hi"} | fields
        self._tasks.append(asyncio.create_task(self._api.http.post("/v1/completions", json=body, headers=headers)))
        while len(self._engine.requests) < num_before + num_prompts:
            await asyncio.sleep(0)
        new = self._engine.requests[num_before:]
        return [name for request in new for name in (request.request_id, *request.children)]

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def flights(api, engine) -> AsyncIterator[Flights]:
    flights = Flights(api, engine)
    yield flights
    await flights.end()


@pytest.fixture
async def guarded(api, state) -> AsyncIterator[Any]:
    """Like ``api``, of a server with keys."""
    state.api_keys = ApiKeys(KEYS)
    guarded = type(api)(create_app(state), state)
    yield guarded
    await guarded.http.aclose()


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def own(sequence_id: str) -> str:
    return sequence_id.removesuffix("-0-0")


async def test_a_request_that_waits_says_why(api, engine, flights) -> None:
    [name] = await flights.start()
    engine.explanations[name] = explanation(name, preemptions=[note("cmpl-x-0-0")])
    body = (await api.http.get(f"/v1/requests/{own(name)}")).json()
    assert 0 <= body.pop("age_seconds") < 60
    assert body == {
        "id": own(name),
        "request_id": own(name),
        "object": "request",
        "status": "waiting",
        "text": "It waits at position 4.",
        "position": 4,
        "expected_start_seconds": 2.5,
        "wait_reason": "pages",
        "wanted_pages": 9,
        "available_pages": 3,
        "tokens": {"total": 20, "computed": 0, "generated": 0},
        "sequences": {"running": 0, "waiting": 1, "pending": 0},
        "preemptions": [
            {
                "requester": "cmpl-x-0-0",
                "seconds": 2.25,
                "kind": "swap",
                "cause": "prefill",
                "pages_freed": 5,
                "tokens_to_recompute": 0,
            }
        ],
    }


async def test_pages_are_wanted_only_by_what_waits_for_pages(api, engine, flights) -> None:
    [name] = await flights.start()
    for one in (running(name), explanation(name, wait_reason=WaitReason.SEQUENCES)):
        engine.explanations[name] = one
        body = (await api.http.get(f"/v1/requests/{name}")).json()
        assert (body["wanted_pages"], body["available_pages"]) == (None, 3)


async def test_a_sequence_is_asked_for_by_its_own_id(api, engine, flights) -> None:
    names = await flights.start(n=2)
    for number, name in enumerate(names):
        engine.explanations[name] = running(name, num_tokens=10 + number)
    body = (await api.http.get(f"/v1/requests/{names[1]}")).json()
    assert (body["id"], body["status"], body["tokens"]["total"]) == (own(names[0]), "running", 11)
    api.assert_error(await api.http.get(f"/v1/requests/{own(names[0])}-0-2"), 404, code="request_not_found")


async def test_a_request_is_the_sum_of_its_sequences_and_the_first_that_waits_speaks(api, engine, flights) -> None:
    names = await flights.start(prompt=["a", "b"], n=2)
    for name, one in zip(
        names,
        [
            running(names[0], preemptions=[note(names[2])]),
            running(names[1]),
            explanation(names[2], preemptions=[note(names[0])]),
            explanation(names[3], status=RequestStatus.PENDING, position=None, wait_reason=None),
        ],
        strict=True,
    ):
        engine.explanations[name] = one
    body = (await api.http.get(f"/v1/requests/{own(names[0])}")).json()
    assert (body["status"], body["position"], body["wait_reason"]) == ("running", 4, "pages")
    assert body["text"] == "It waits at position 4."
    assert body["sequences"] == {"running": 2, "waiting": 1, "pending": 1}
    assert body["tokens"] == {"total": 80, "computed": 44, "generated": 6}
    assert [one["requester"] for one in body["preemptions"]] == [names[2], names[0]]


async def test_a_request_with_many_sequences_costs_the_engine_a_bounded_number_of_answers(
    api, engine, flights, monkeypatch
) -> None:
    engine.ready = engine.make_ready(max_num_seqs=128)
    names = await flights.start(n=100)
    asked = []

    async def explain(name: str) -> RequestExplanation:
        asked.append(name)
        return running(name)

    monkeypatch.setattr(engine, "explain", explain)
    await api.http.get(f"/v1/requests/{own(names[0])}")
    assert asked == names[:MAX_EXPLAINED]


@pytest.mark.parametrize("chosen", ["mine", "a b/c?d", "cmpl-like-0-0"])
async def test_a_request_is_found_by_the_id_its_client_chose(api, engine, flights, chosen) -> None:
    [name] = await flights.start(headers={"x-request-id": chosen})
    engine.explanations[name] = explanation(name)
    path = chosen.replace(" ", "%20").replace("?", "%3F")
    body = (await api.http.get(f"/v1/requests/{path}")).json()
    assert (body["id"], body["request_id"]) == (own(name), chosen)


async def test_of_two_requests_with_one_name_the_later_is_meant_and_both_can_end(api, engine, state, flights) -> None:
    names = [(await flights.start(headers={"x-request-id": "same"}))[0] for _ in range(2)]
    for name in names:
        engine.explanations[name] = explanation(name)
    assert (await api.http.get("/v1/requests/same")).json()["id"] == own(names[1])
    await flights.end()
    api.assert_error(await api.http.get("/v1/requests/same"), 404, code="request_not_found")
    assert (await api.http.get("/v1/requests")).json()["data"] == []


@pytest.mark.parametrize("name", ["cmpl-nothing", "x-0-0", "", "%2e%2e", "-0-0", "a" * 300])
async def test_an_unknown_id_is_a_404(api, name) -> None:
    if name:
        api.assert_error(await api.http.get(f"/v1/requests/{name}"), 404, code="request_not_found")
    assert (await api.http.get("/v1/requests/")).status_code == 404


async def test_a_request_that_has_ended_is_a_404(api, engine, flights) -> None:
    ended = (await api.completion()).json()["id"]
    api.assert_error(await api.http.get(f"/v1/requests/{ended}"), 404, code="request_not_found")
    [name] = await flights.start()  # the engine has ended it, and its last delta is on the way
    api.assert_error(await api.http.get(f"/v1/requests/{own(name)}"), 404, code="request_not_found")


async def test_what_is_in_flight_is_listed_oldest_first(api, engine, flights) -> None:
    first = await flights.start(n=2, headers={"x-request-id": "mine"})
    second = await flights.start()
    for name in first:
        engine.explanations[name] = running(name)
    engine.explanations[second[0]] = explanation(second[0])
    body = (await api.http.get("/v1/requests")).json()
    assert all(0 <= one.pop("age_seconds") < 60 for one in body["data"])
    assert body == {
        "object": "list",
        "data": [
            {"id": own(first[0]), "request_id": "mine", "status": "running", "position": None},
            {"id": own(second[0]), "request_id": own(second[0]), "status": "waiting", "position": 4},
        ],
        "has_more": False,
    }


async def test_a_sequence_that_has_ended_does_not_speak_for_the_others(api, engine) -> None:
    engine.answer("ab")
    engine.scripts.append([asyncio.Event()])
    answering = asyncio.create_task(api.completion(n=2))
    while not engine.requests or engine.num_in_flight > 1:
        await asyncio.sleep(0)
    child = engine.requests[0].children[0]
    engine.explanations[child] = running(child)
    async with asyncio.timeout(10):
        while not (listed := (await api.http.get("/v1/requests")).json()["data"]):
            pass  # the end of the first is on its way
    assert [one["status"] for one in listed] == ["running"]
    answering.cancel()


async def test_the_list_is_bounded_and_says_so(api, engine, flights) -> None:
    for number in range(MAX_LISTED + 1):
        [name] = await flights.start()
        engine.explanations[name] = explanation(name, position=number)
    body = (await api.http.get("/v1/requests")).json()
    assert [one["position"] for one in body["data"]] == list(range(MAX_LISTED))
    assert body["has_more"] is True


async def test_only_the_key_that_sent_a_request_sees_it(guarded, engine) -> None:
    flights = Flights(guarded, engine)
    names = [(await flights.start(headers=bearer(key) | {"x-request-id": "same"}))[0] for key in KEYS]
    for name in names:
        engine.explanations[name] = explanation(name)
    for key, name, other in zip(KEYS, names, reversed(names), strict=True):
        guarded.http.headers.update(bearer(key))
        for path in (own(name), name, "same"):
            assert (await guarded.http.get(f"/v1/requests/{path}")).json()["id"] == own(name)
        for path in (own(other), other):
            guarded.assert_error(await guarded.http.get(f"/v1/requests/{path}"), 404, code="request_not_found")
        assert [one["id"] for one in (await guarded.http.get("/v1/requests")).json()["data"]] == [own(name)]
    del guarded.http.headers["authorization"]
    for path in ("/v1/requests", f"/v1/requests/{names[0]}"):
        guarded.assert_error(await guarded.http.get(path), 401, code="invalid_api_key")
    await flights.end()


async def test_a_preemption_for_another_tenant_does_not_tell_for_whom(guarded, engine) -> None:
    flights = Flights(guarded, engine)
    [mine], [also_mine], [other] = [await flights.start(headers=bearer(KEYS[n])) for n in (0, 0, 1)]
    requesters = [mine, also_mine, other, other[:-1] + "01", "cmpl-forgotten-0-0"]
    text = " ".join(f"It was preempted (for {name}, prefill)." for name in requesters)
    engine.explanations[mine] = running(mine, text=text, preemptions=[note(name) for name in requesters])
    response = await guarded.http.get(f"/v1/requests/{mine}", headers=bearer(KEYS[0]))
    shown = [mine, also_mine, *[ANOTHER_REQUEST] * 3]
    assert [one["requester"] for one in response.json()["preemptions"]] == shown
    assert response.json()["text"] == " ".join(f"It was preempted (for {name}, prefill)." for name in shown)
    assert own(other) not in response.text
    await flights.end()


async def test_an_engine_that_does_not_serve_is_a_503(api, engine, flights) -> None:
    [name] = await flights.start()
    engine.state = EngineState.RESTARTING
    for path in ("/v1/requests", f"/v1/requests/{name}"):
        api.assert_error(await api.http.get(path), 503, code="engine_unavailable")


async def test_an_engine_that_does_not_answer_is_a_503(api, engine, flights, monkeypatch) -> None:
    [name] = await flights.start()
    monkeypatch.setattr(engine_answer, "ANSWER_SECONDS", 0.0)
    monkeypatch.setattr(engine, "explain", lambda name: asyncio.Event().wait())
    api.assert_error(await api.http.get(f"/v1/requests/{name}"), 503, code="engine_silent")


async def test_head_answers_like_get(api, engine, flights) -> None:
    [name] = await flights.start()
    engine.explanations[name] = explanation(name)
    for path in ("/v1/requests", f"/v1/requests/{name}"):
        response = await api.http.head(path)
        assert (response.status_code, response.content) == (200, b"")
