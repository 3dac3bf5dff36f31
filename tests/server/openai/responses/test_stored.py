"""GET and DELETE /v1/responses/{id}, input items, cancel."""

from __future__ import annotations

import pytest

from scheduler.request import FinishReason


async def test_a_response_can_be_read_again_until_it_is_deleted(api, responses, engine) -> None:
    engine.answer("b", FinishReason.STOP)
    streamed = (await responses.events())[-1]["response"]
    plain = await responses.made()
    for made in (streamed, plain):
        path = f"/v1/responses/{made['id']}"
        assert (await api.http.get(path)).json() == made
        deleted = await api.http.delete(path)
        assert deleted.json() == {"id": made["id"], "object": "response", "deleted": True}
        api.assert_error(await api.http.get(path), 404, code="response_not_found")
        api.assert_error(await api.http.delete(path), 404, code="response_not_found")


async def test_what_is_not_to_be_stored_is_not(api, responses) -> None:
    made = await responses.made(store=False)
    api.assert_error(await api.http.get(f"/v1/responses/{made['id']}"), 404, code="response_not_found")


async def test_nothing_that_is_stored_can_be_cancelled(api, responses) -> None:
    made = await responses.made()
    message = api.assert_error(await api.http.post(f"/v1/responses/{made['id']}/cancel"), 400)
    assert "background" in message
    api.assert_error(await api.http.post("/v1/responses/nope/cancel"), 404, code="response_not_found")


async def test_input_items_are_the_whole_conversation_page_by_page(api, responses, engine) -> None:
    engine.answer("b", FinishReason.STOP)
    first = await responses.made(input="a")
    second = await responses.made(input=[{"role": "user", "content": "c"}], previous_response_id=first["id"])
    path = f"/v1/responses/{second['id']}/input_items"
    everything = (await api.http.get(path, params={"order": "asc"})).json()
    texts = [item["content"][0]["text"] for item in everything["data"]]
    assert texts == ["a", "b", "c"]
    assert everything["data"][1] == first["output"][0]
    ids = [item["id"] for item in everything["data"]]
    assert (everything["first_id"], everything["last_id"], everything["has_more"]) == (ids[0], ids[2], False)
    newest = (await api.http.get(path, params={"limit": 2})).json()
    assert ([item["id"] for item in newest["data"]], newest["has_more"]) == (ids[:0:-1], True)
    rest = (await api.http.get(path, params={"limit": 2, "after": newest["last_id"]})).json()
    assert ([item["id"] for item in rest["data"]], rest["has_more"]) == (ids[:1], False)
    nothing = (await api.http.get(path, params={"after": ids[0]})).json()
    assert (nothing["data"], nothing["first_id"], nothing["last_id"]) == ([], None, None)


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ({"order": "up"}, "order", None),
        ({"limit": "0"}, "limit", None),
        ({"limit": "101"}, "limit", None),
        ({"limit": "10000"}, "limit", None),
        ({"limit": "0099999"}, "limit", None),
        ({"limit": "x"}, "limit", None),
        ({"after": "nope"}, "after", None),
        ({"include": "x"}, "include", "unsupported_parameter"),
    ],
)
async def test_a_wrong_parameter_of_the_list_is_named(api, responses, query, param, code) -> None:
    made = await responses.made()
    response = await api.http.get(f"/v1/responses/{made['id']}/input_items", params=query)
    api.assert_error(response, 400, param=param, code=code)


async def test_a_stored_response_is_not_streamed_again(api, responses) -> None:
    made = await responses.made()
    response = await api.http.get(f"/v1/responses/{made['id']}", params={"stream": "true"})
    api.assert_error(response, 400, param="stream", code="unsupported_parameter")
