"""API keys and cache salts. Ids like G07 name cases known from other servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.messages import PreemptionNote
from server.app import create_app
from server.auth import ApiKeys

KEYS = ("first-key", "second-key")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
async def guarded(api, state) -> AsyncIterator[Any]:
    """Like ``api``, of a server with keys."""
    state.api_keys = ApiKeys(KEYS)
    guarded = type(api)(create_app(state), state)
    yield guarded
    await guarded.http.aclose()


@pytest.mark.parametrize("key", KEYS)
async def test_each_key_opens_every_route(guarded, key) -> None:
    guarded.http.headers.update(bearer(key))
    assert (await guarded.completion()).status_code == 200
    assert (await guarded.completion(stream=True)).status_code == 200
    assert (await guarded.chat()).status_code == 200
    for path in ("/v1/models", f"/v1/models/{guarded.model}"):
        assert (await guarded.http.get(path)).status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        None, "", "Bearer", "Bearer ", "Bearer wrong", "Bearer first-ke", "Bearer first-key2", "Bearer FIRST-KEY",
        "Basic first-key", "first-key", "Bearer first-key second-key", "Bearer \xff\xfe",
    ],
)  # fmt: skip
async def test_without_one_of_the_keys_nothing_of_v1_answers(guarded, engine, header) -> None:
    if header is not None:
        guarded.http.headers["authorization"] = header
    responses = [
        await guarded.completion(),
        await guarded.completion(stream=True),
        await guarded.chat(),
        await guarded.http.get("/v1"),
    ]
    responses += [
        await guarded.http.get(path) for path in ("/v1/", "/v1/models", f"/v1/models/{guarded.model}", "/v1/nope")
    ]
    for response in responses:
        message = guarded.assert_error(response, 401, code="invalid_api_key")
        assert "key" in message
        assert not any(key in response.text for key in KEYS)
        assert response.headers["www-authenticate"] == "Bearer"
    assert engine.requests == []


async def test_a_stranger_is_refused_before_the_body_is_judged(guarded) -> None:
    response = await guarded.http.post("/v1/completions", content=b"x" * 50_000)
    guarded.assert_error(response, 401, code="invalid_api_key")


@pytest.mark.parametrize("header", ["bearer first-key", "BEARER first-key", "Bearer   first-key "])
async def test_the_scheme_may_be_written_in_any_case(guarded, header) -> None:
    guarded.http.headers["authorization"] = header
    assert (await guarded.completion()).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/version"])
async def test_what_operators_read_stays_open(guarded, path) -> None:
    assert (await guarded.http.get(path)).status_code == 200


async def test_without_keys_any_header_is_welcome(api, engine) -> None:
    assert (await api.http.post("/v1/completions", json={"model": api.model, "prompt": "hi"})).status_code == 200
    api.http.headers.update(bearer("anything"))
    assert (await api.completion()).status_code == 200
    assert [request.cache_salt for request in engine.requests] == ["", ""]


@pytest.mark.parametrize("path", ["completion", "chat"])
async def test_g07_a_request_can_bring_its_own_salt(api, engine, path) -> None:
    for salt in ("tenant", "x", "s" * 256, None):
        await getattr(api, path)(cache_salt=salt)
    assert [request.cache_salt for request in engine.requests] == ["tenant", "x", "s" * 256, ""]


@pytest.mark.parametrize("path", ["completion", "chat"])
@pytest.mark.parametrize("salt", ["", "s" * 257, 5, True, ["a"]])
async def test_a_salt_of_the_wrong_form_is_refused(api, engine, path, salt) -> None:
    api.assert_error(await getattr(api, path)(cache_salt=salt), 400, param="cache_salt")
    assert engine.requests == []


@pytest.mark.parametrize("path", ["completion", "chat"])
async def test_g07_two_keys_never_share_whatever_salts_they_bring(guarded, engine, path) -> None:
    requests = [(key, salt) for key in KEYS for salt in (None, "a", "first-key", "second-key", ":")]
    for key, salt in requests:
        guarded.http.headers.update(bearer(key))
        await getattr(guarded, path)(cache_salt=salt)
    salts = [request.cache_salt for request in engine.requests]
    assert len(set(salts)) == len(requests)
    for key, salt in requests:
        guarded.http.headers.update(bearer(key))
        await getattr(guarded, path)(cache_salt=salt)
    assert [request.cache_salt for request in engine.requests[len(requests) :]] == salts


async def test_g07_a_key_cannot_bring_the_salt_of_another_as_its_own(guarded, engine) -> None:
    guarded.http.headers.update(bearer(KEYS[0]))
    await guarded.completion(cache_salt="mine")
    guarded.http.headers.update(bearer(KEYS[1]))
    await guarded.completion(cache_salt=engine.requests[0].cache_salt)
    assert engine.requests[0].cache_salt != engine.requests[1].cache_salt


async def test_keys_reach_neither_the_engine_nor_the_log_nor_the_metrics(guarded, engine, caplog) -> None:
    caplog.set_level("DEBUG")
    guarded.http.headers.update(bearer(KEYS[0]))
    engine.answer("a", None).append(RuntimeError("a bug"))
    await guarded.completion(cache_salt="saltsecret")
    guarded.http.headers.update(bearer("wrongsecret"))
    await guarded.completion()
    salts = [request.cache_salt.partition(":")[0] for request in engine.requests]
    shown = caplog.text + (await guarded.http.get("/metrics")).text
    assert not any(secret in shown for secret in (*KEYS, *salts, "secret"))
    assert not any(key in salt for key in KEYS for salt in salts)
    assert not any(key in repr(vars(ApiKeys(KEYS))) for key in KEYS)


async def test_each_key_is_a_tenant_of_its_own_named_by_its_place(guarded, engine) -> None:
    for key in (*KEYS, KEYS[0]):
        await guarded.http.post(
            "/v1/completions", json={"model": guarded.model, "prompt": "hi", "n": 2}, headers=bearer(key)
        )
    assert [request.tenant for request in engine.requests] == ["key-1", "key-2", "key-1"]


async def test_without_keys_there_is_one_tenant(api, engine) -> None:
    api.http.headers.update(bearer("anything"))
    await api.completion()
    assert [request.tenant for request in engine.requests] == [""]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_ledger_names_requests_of_the_same_key_only(guarded, engine, stream) -> None:
    guarded.http.headers.update(bearer(KEYS[1]))
    other = (await guarded.completion()).json()["id"]
    guarded.http.headers.update(bearer(KEYS[0]))
    mine = (await guarded.completion()).json()["id"]
    fields = {"seconds": 1.5, "kind": "swap", "cause": "decode", "pages_freed": 3, "tokens_to_recompute": 0}
    notes = [PreemptionNote(requester=f"{name}-0-0", **fields) for name in (other, mine)]
    engine.answer("abc", ledger=engine.make_ledger(preemptions=notes))
    response = await guarded.completion(include_ledger=True, stream=stream)
    body = guarded.events(response.text)[-2] if stream else response.json()
    requesters = [one.pop("requester") for one in body["choices"][0]["ledger"]["preemptions"]]
    assert requesters == ["another request", f"{mine}-0-0"]
    assert body["choices"][0]["ledger"]["preemptions"] == [fields, fields]
    assert other not in response.text


async def test_a_refusal_for_want_of_a_key_carries_the_id_that_the_client_chose(guarded) -> None:
    response = await guarded.http.post("/v1/completions", headers={"x-request-id": "mine"})
    assert (response.status_code, response.headers["x-request-id"]) == (401, "mine")
