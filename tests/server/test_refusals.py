"""What the scheduler refuses or ends, as HTTP. Ids like F17 name cases known from other servers."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from engine.client import EngineDied
from engine.messages import Failure
from scheduler.refusal import RefusalReason
from server.errors import from_failure


@pytest.mark.parametrize("path", ["completion", "chat"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("seconds", "header"), [(1.0, "1"), (2.01, "3"), (0.0, "1"), (None, "1"), (500.0, "120")])
async def test_f17_a_full_queue_is_a_429_that_says_when_to_come_again(
    api, engine, path, stream, seconds, header
) -> None:
    engine.scripts.append([engine.failure("queue_full", "4 requests wait already", retry_after=seconds)])
    response = await getattr(api, path)(stream=stream)
    assert api.assert_error(response, 429, code="queue_full") == "4 requests wait already"
    assert response.headers["retry-after"] == header


@pytest.mark.parametrize("stream", [False, True])
async def test_f19_who_waited_too_long_to_start_gets_503(api, engine, stream) -> None:
    engine.scripts.append([engine.failure("queue_timeout", "waited for 2 s")])
    response = await api.completion(stream=stream)
    assert api.assert_error(response, 503, code="queue_timeout") == "waited for 2 s"
    assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("started", "status"), [(False, 503), (True, 504)])
async def test_d18_a_timeout_before_the_first_token_is_an_ordinary_answer(api, engine, stream, started, status) -> None:
    engine.scripts.append([engine.failure("timeout", "the timeout of 5 s is over", started=started)])
    response = await api.completion(stream=stream, timeout=5)
    assert api.assert_error(response, status, code="timeout") == "the timeout of 5 s is over"
    assert "retry-after" not in response.headers


async def test_d19_a_plain_request_out_of_time_is_an_error_though_it_has_tokens(api, engine) -> None:
    engine.answer("abc", None).append(engine.failure("timeout", started=True))
    api.assert_error(await api.completion(timeout=5), 504, code="timeout")
    assert await api.outcomes() == {"error": 1}


@pytest.mark.parametrize("path", ["completion", "chat"])
async def test_d17_a_stream_out_of_time_ends_with_an_error_event_and_done(api, engine, path) -> None:
    engine.answer("abc", None).append(engine.failure("timeout", "the timeout of 5 s is over", started=True))
    response = await getattr(api, path)(stream=True, timeout=5)
    assert response.status_code == 200
    *chunks, error, done = api.events(response.text)
    assert len(chunks) == (4 if path == "chat" else 3)
    assert error == {
        "error": {"message": "the timeout of 5 s is over", "type": "server_error", "param": None, "code": "timeout"}
    }
    assert done == "[DONE]"


async def test_what_the_engine_proves_never_to_fit_is_a_400(api, engine) -> None:
    engine.scripts.append([engine.failure("never_fits", "900 tokens do not fit into 20 pages")])
    api.assert_error(await api.completion(), 400, code="kv_capacity_exceeded")


async def test_a_step_that_failed_is_a_500_that_names_it(api, engine) -> None:
    engine.scripts.append([engine.failure("step_failed", "the step failed", started=True)])
    api.assert_error(await api.completion(), 500, code="step_failed")


async def test_a_failure_of_any_other_kind_is_a_500(api, engine) -> None:
    engine.scripts.append([engine.failure("invalid", "request x is known already")])
    api.assert_error(await api.completion(), 500, code="engine_error")


def test_every_reason_of_the_scheduler_has_its_status() -> None:
    statuses = {reason: from_failure(Failure(code=reason, message="no")).status for reason in RefusalReason}
    assert statuses == {"queue_full": 429, "queue_timeout": 503, "timeout": 503}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("refused", [0, 1])
async def test_the_first_prompt_that_is_refused_ends_all_and_aborts_the_rest(api, engine, stream, refused) -> None:
    scripts = [[asyncio.Event()], [asyncio.Event()]]
    scripts[refused] = [engine.failure("queue_full", retry_after=7.0)]
    engine.scripts += scripts
    response = await api.completion(prompt=["a", "b"], stream=stream)
    api.assert_error(response, 429, code="queue_full")
    assert response.headers["retry-after"] == "7"
    assert engine.aborted == [engine.requests[1 - refused].request_id]
    assert engine.num_in_flight == 0
    assert await api.outcomes() == {"abort": 1}


@pytest.mark.parametrize(
    "fields", [{"max_tokens": -1}, {"prompt": "x" * 600}, {"model": "other"}, {"nonsense": 1}, {"prompt": ""}]
)
async def test_f18_what_is_wrong_in_itself_tells_clients_not_to_retry(api, fields) -> None:
    response = await api.completion(**fields)
    assert response.status_code in (400, 404)
    assert response.headers["x-should-retry"] == "false"


async def test_f18_what_may_work_later_does_not(api, engine) -> None:
    for step in (engine.failure("queue_full"), engine.failure("queue_timeout"), EngineDied("gone")):
        engine.scripts.append([step])
        assert "x-should-retry" not in (await api.completion()).headers


@pytest.mark.parametrize("path", ["completion", "chat"])
async def test_what_a_request_asks_of_the_scheduler_reaches_it(api, engine, state, path) -> None:
    state.scheduling_policy = "priority"
    await getattr(api, path)(priority=-100, timeout=1.5, n=2)
    await getattr(api, path)(priority=100, timeout=86400)
    await getattr(api, path)(priority=None, timeout=None)
    asked = [(request.priority, request.timeout, request.tenant) for request in engine.requests]
    assert asked == [(-100, 1.5, ""), (100, 86400, ""), (0, None, "")]


@pytest.mark.parametrize("path", ["completion", "chat"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("priority", value) for value in (-101, 101, 1.5, "1", True, False, [], 2**70)),
        *(("timeout", value) for value in (0, -1, 86400.5, "5", True, [], {}, 2**70)),
    ],
)
async def test_a_priority_or_timeout_of_the_wrong_kind_is_refused(api, engine, state, path, field, value) -> None:
    state.scheduling_policy = "priority"
    api.assert_error(await getattr(api, path)(**{field: value}), 400, param=field)
    assert engine.requests == []


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["priority", "timeout"])
async def test_a25_a_priority_or_timeout_that_is_not_finite_is_refused(api, engine, field, literal) -> None:
    body = f'{{"model":"{api.model}","prompt":"hi","{field}":{literal}}}'
    api.assert_error(await api.http.post("/v1/completions", content=body), 400, code="invalid_json")
    assert engine.requests == []


@pytest.mark.parametrize("path", ["completion", "chat"])
@pytest.mark.parametrize("policy", ["fcfs", "fair"])
async def test_f21_a_priority_that_nobody_would_look_at_is_refused(api, engine, state, path, policy) -> None:
    state.scheduling_policy = policy
    message = api.assert_error(
        await getattr(api, path)(priority=-3), 400, param="priority", code="unsupported_parameter"
    )
    assert policy in message
    assert "--scheduling-policy priority" in message
    assert engine.requests == []
    assert (await getattr(api, path)(priority=0)).status_code == 200


# ---- the place in the queue


@pytest.fixture
def telling(state) -> None:
    state.stream_queue_position = True


def lines(text: str) -> list[str]:
    """The blocks of a stream, data shown as "data"."""
    return [block if block.startswith(":") else block[:4] for block in text.removesuffix("\n\n").split("\n\n")]


@pytest.mark.parametrize("path", ["completion", "chat"])
async def test_a_stream_that_waits_is_told_its_place_once_per_change(api, engine, telling, path) -> None:
    script = engine.answer("ab")
    script[:0] = [engine.queued(place) for place in (3, 3, 2, 1)]
    response = await getattr(api, path)(stream=True)
    places = [": queued position=3", ": queued position=2", ": queued position=1"]
    assert lines(response.text) == [*places, *["data"] * (5 if path == "chat" else 4)]
    assert [request.reports_position for request in engine.requests] == [True]


async def test_the_place_of_several_prompts_is_that_of_the_first_to_start(api, engine, telling) -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    for number, gate in enumerate(gates):
        engine.answer("ab")[:0] = [engine.queued(3 + number), gate, engine.queued(1 + number)]
    answering = asyncio.create_task(api.completion(prompt=["a", "b"], stream=True))
    while len(engine.requests) < 2:
        await asyncio.sleep(0)
    for gate in gates:
        gate.set()
    comments = [line for line in lines((await answering).text) if line.startswith(":")]
    assert comments == [": queued position=3", ": queued position=1"]


@pytest.mark.parametrize("code", list(RefusalReason))
async def test_a_refusal_after_a_comment_is_an_error_event(api, engine, telling, code) -> None:
    engine.scripts.append([engine.queued(3), engine.failure(code, "no more")])
    response = await api.completion(stream=True)
    assert response.status_code == 200
    comment, error, done, _ = response.text.split("\n\n")
    assert (comment, done) == (": queued position=3", "data: [DONE]")
    assert orjson.loads(error.removeprefix("data: "))["error"]["code"] == code


async def test_d18_a_refusal_before_any_comment_is_an_ordinary_answer(api, engine, telling) -> None:
    engine.scripts.append([engine.failure("queue_full")])
    api.assert_error(await api.completion(stream=True), 429, code="queue_full")


@pytest.mark.parametrize("stream", [False, True])
async def test_nobody_asks_for_a_place_that_is_not_told(api, engine, state, stream) -> None:
    state.stream_queue_position = not stream  # plain requests never ask
    await api.completion(stream=stream)
    assert [request.reports_position for request in engine.requests] == [False]
