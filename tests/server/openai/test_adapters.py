"""Adapters over HTTP: loaded, chosen by the model's name, listed, unloaded; and by whom."""

from __future__ import annotations

from typing import Any

import pytest

from engine.adapter_messages import AdapterRequests
from engine.messages import RequestDelta
from scheduler.request import FinishReason
from server.app import create_app
from server.auth import AdminKey, ApiKeys

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
def adapters(api, state) -> Any:
    """``adapters.load(name, path)`` and ``adapters.unload(name)``, where they are allowed."""
    state.loads_adapters = True

    class AdapterApi:
        async def load(self, name: str = "poet", path: str = "/adapters/poet", **fields: Any) -> Any:
            return await api.http.post(LOAD, json={"lora_name": name, "lora_path": path} | fields)

        async def unload(self, name: str = "poet", **fields: Any) -> Any:
            return await api.http.post(UNLOAD, json={"lora_name": name} | fields)

    return AdapterApi()


async def test_a_loaded_adapter_is_listed_with_its_parent_and_root(adapters, api, state) -> None:
    loaded = await adapters.load()
    poet = {
        "id": "poet",
        "object": "model",
        "created": state.created,
        "owned_by": "octavo",
        "root": "/adapters/poet",
        "parent": "org/tiny",
    }
    assert (loaded.status_code, loaded.json()) == (200, poet)
    listed = (await api.http.get("/v1/models")).json()["data"]
    assert [one["id"] for one in listed] == ["org/tiny", "poet"]
    assert listed[1] == poet
    assert (await api.http.get("/v1/models/poet")).json() == poet


async def test_an_unloaded_adapter_is_no_model_any_more(adapters, api) -> None:
    await adapters.load()
    gone = await adapters.unload()
    assert (gone.status_code, gone.json()) == (200, {"id": "poet", "object": "model", "deleted": True})
    api.assert_error(await api.completion(model="poet"), 404, param="model", code="model_not_found")
    api.assert_error(await adapters.unload(), 404, code="unknown_adapter")
    assert [one["id"] for one in (await api.http.get("/v1/models")).json()["data"]] == ["org/tiny"]


async def test_every_endpoint_takes_the_adapter_that_its_model_names(adapters, api, engine) -> None:
    await adapters.load()
    messages = [{"role": "user", "content": "hi"}]
    answers = [
        await api.completion(model="poet"),
        await api.chat(model="poet"),
        await api.http.post("/v1/responses", json={"model": "poet", "input": "hi"}),
        await api.http.post("/v1/messages", json={"model": "poet", "max_tokens": 5, "messages": messages}),
    ]
    assert [answer.json()["model"] for answer in answers] == ["poet"] * 4
    vector = RequestDelta(request_id="", token_ids=[], finish_reason=FinishReason.LENGTH, embedding=bytes(16))
    engine.scripts.append([vector])
    embedding = await api.http.post("/v1/embeddings", json={"model": "poet", "input": "hi"})
    assert embedding.json()["model"] == "poet"
    assert [request.adapter for request in engine.requests] == ["poet"] * 5
    await api.completion()
    assert engine.requests[-1].adapter == ""
    for path in ("/tokenize", "/v1/messages/count_tokens"):
        fields = {"prompt": "hi"} if path == "/tokenize" else {"messages": messages}
        assert (await api.http.post(path, json={"model": "poet"} | fields)).status_code == 200
        answer = await api.http.post(path, json={"model": "prose"} | fields)
        assert answer.status_code == 404


async def test_streams_say_which_adapter_answers(adapters, api) -> None:
    await adapters.load()
    events = api.events((await api.completion(model="poet", stream=True)).text)
    assert {event["model"] for event in events[:-1]} == {"poet"}


async def test_an_unknown_model_is_told_that_there_are_adapters(adapters, api) -> None:
    await adapters.load()
    message = api.assert_error(await api.completion(model="prose"), 404, param="model", code="model_not_found")
    assert message == "the model 'prose' does not exist; this server serves 'org/tiny' and 1 adapter"


async def test_an_adapter_that_went_while_its_request_was_on_the_way_is_a_404(adapters, api, engine) -> None:
    await adapters.load()
    engine.scripts.append([engine.failure("unknown_adapter", "no adapter 'poet' is loaded")])
    api.assert_error(await api.completion(model="poet"), 404, param="model", code="model_not_found")


async def test_a_name_is_taken_until_it_is_replaced_on_purpose(adapters, api, engine) -> None:
    await adapters.load()
    message = api.assert_error(await adapters.load(path="/adapters/other"), 400, code="adapter_exists")
    assert message == "an adapter 'poet' is loaded already"
    replaced = await adapters.load(path="/adapters/other", load_inplace=True)
    assert replaced.json()["root"] == "/adapters/other"
    assert engine.store.installed == [2]
    api.assert_error(await adapters.load("org/tiny"), 400, param="lora_name", code="adapter_exists")


async def test_what_is_wrong_with_an_adapter_is_told_in_the_engines_words(adapters, api) -> None:
    message = api.assert_error(await adapters.load(path="/adapters/broken"), 400, code="invalid_adapter")
    assert message == "/adapters/broken has no adapter_config.json"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"lora_name": ""}, "lora_name"),
        ({"lora_name": "a b"}, "lora_name"),
        ({"lora_name": "a\n"}, "lora_name"),
        ({"lora_name": "x" * 257}, "lora_name"),
        ({"lora_name": 5}, "lora_name"),
        ({"lora_path": ""}, "lora_path"),
        ({"lora_path": "relative/path"}, "lora_path"),
        ({"lora_path": "/adapters/\0"}, "lora_path"),
        ({"lora_path": "org/name"}, "lora_path"),
        ({"lora_path": None}, "lora_path"),
        ({"load_inplace": "yes"}, "load_inplace"),
    ],
)
async def test_a_wrong_field_is_named(adapters, api, engine, fields: dict[str, Any], param: str) -> None:
    api.assert_error(await adapters.load(**fields), 400, param=param)
    assert engine.adapters == {}


async def test_metrics_tell_the_memory_and_the_requests_of_each_adapter(adapters, api, engine) -> None:
    await adapters.load()
    requests = [AdapterRequests(name="poet", running=2, waiting=1)]
    engine.stats = engine.make_stats(adapter_requests=requests)
    assert await api.metric('octavo_adapter_bytes{adapter="poet"}') == 4096
    assert await api.metric('octavo_adapter_requests{adapter="poet",state="running"}') == 2
    assert await api.metric('octavo_adapter_requests{adapter="poet",state="waiting"}') == 1
    await adapters.unload()
    assert "octavo_adapter_bytes{" not in (await api.http.get("/metrics")).text


async def test_a_field_that_is_not_served_is_refused_by_name(adapters, api) -> None:
    answer = await adapters.load(base_model_name="org/tiny")
    api.assert_error(answer, 400, param="base_model_name", code="unknown_parameter")


async def test_by_default_adapters_do_not_change(api, engine) -> None:
    for path in (LOAD, UNLOAD):
        body = {"lora_name": "poet", "lora_path": "/adapters/poet"}
        message = api.assert_error(await api.http.post(path, json=body), 403, code="adapters_fixed")
        assert "--enable-lora" in message
    assert engine.adapters == {}


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
async def test_where_there_are_keys_only_the_admin_key_changes_adapters(adapters, api, state, path: str) -> None:
    async def status(api_keys: tuple[str, ...], admin_key: str | None, key: str) -> tuple[int, str | None]:
        state.api_keys, state.admin_key = ApiKeys(api_keys), AdminKey(admin_key)
        guarded = type(api)(create_app(state), state)
        body = {"lora_name": "poet"} | ({"lora_path": "/adapters/poet"} if path == LOAD else {})
        answer = await guarded.http.post(path, json=body, headers={"authorization": f"Bearer {key}"})
        await guarded.http.aclose()
        return answer.status_code, answer.json().get("error", {}).get("code")

    if path == UNLOAD:
        await adapters.load()
    assert await status(("user",), None, "user") == (403, "admin_key_needed")
    assert await status(("user",), "boss", "user") == (401, "invalid_admin_key")
    assert await status((), "boss", "nobody") == (401, "invalid_admin_key")
    assert await status(("user",), "boss", "boss") == (200, None)
