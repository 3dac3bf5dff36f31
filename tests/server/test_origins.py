"""Scripts of web pages: what a browser asks first, and what it must find in answers to let a page read them."""

from __future__ import annotations

import pytest

from engine.config import ConfigError, EngineConfig
from server.app import create_app
from server.auth import ApiKeys
from server.options import ModelOptions

PAGE = "https://chat.example"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


@pytest.fixture
def open_api(api, state):
    """The API with a key, open to one page."""
    state.api_keys = ApiKeys(("secret",))
    state.allowed_origins = (PAGE,)
    return type(api)(create_app(state), state)


async def test_j09_a_preflight_needs_no_key(open_api) -> None:
    response = await open_api.http.options("/v1/chat/completions", headers=PREFLIGHT)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == PAGE
    assert "POST" in response.headers["access-control-allow-methods"]
    assert response.headers["access-control-allow-headers"] == "authorization,content-type"


async def test_j09_a_refusal_can_be_read_by_the_page_too(open_api) -> None:
    response = await open_api.http.post("/v1/completions", headers={"origin": PAGE}, json={})
    open_api.assert_error(response, 401, code="invalid_api_key")
    assert response.headers["access-control-allow-origin"] == PAGE


async def test_answers_and_streams_are_for_the_page(open_api) -> None:
    headers = {"origin": PAGE, "authorization": "Bearer secret"}
    for stream in (False, True):
        body = {"model": open_api.model, "prompt": "hi", "stream": stream}
        response = await open_api.http.post("/v1/completions", headers=headers, json=body)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == PAGE
        assert "x-request-id" in response.headers["access-control-expose-headers"]


async def test_other_pages_get_nothing(open_api) -> None:
    response = await open_api.http.options("/v1/completions", headers=PREFLIGHT | {"origin": "https://evil.example"})
    assert response.status_code == 400
    assert "access-control-allow-origin" not in response.headers


async def test_no_page_is_let_in_unless_asked(api) -> None:
    response = await api.http.post("/v1/completions", headers={"origin": PAGE}, json={})
    assert "access-control-allow-origin" not in response.headers


async def test_j10_options_says_which_methods_there_are(api) -> None:
    response = await api.http.options("/v1/models")
    assert (response.status_code, response.content) == (204, b"")
    assert {"GET", "HEAD"} <= {method.strip() for method in response.headers["allow"].split(",")}


@pytest.mark.parametrize("origin", ["chat.example", "https://chat.example/", "https://a b", ""])
def test_what_is_no_origin_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(ConfigError, match="--allowed-origin"):
        ModelOptions(model="m", allowed_origins=(origin,), engine=EngineConfig(model="m")).validate()
    ModelOptions(model="m", allowed_origins=("*", PAGE), engine=EngineConfig(model="m")).validate()
