"""Who may see the page map."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from engine.config import ConfigError, EngineConfig
from server import cli
from server.app import create_app
from server.auth import AdminKey, ApiKeys
from server.options import ServeOptions

API, ADMIN = "api-key-of-a-user", "key-of-the-admin"
DATA = ("/dashboard/feed", "/dashboard/pages/1", "/dashboard/requests/cmpl-1-0-0", "/dashboard/", "/dashboard/nope")
HEADERS = {
    "none": {},
    "wrong": {"authorization": "Bearer wrong"},
    "part": {"authorization": f"Bearer {ADMIN[:-1]}"},
    "scheme": {"authorization": f"Basic {ADMIN}"},
    "api": {"authorization": f"Bearer {API}"},
    "admin": {"authorization": f"Bearer {ADMIN}"},
    "x-admin": {"x-api-key": ADMIN},
    "x-api": {"x-api-key": API},
}
RIGHT = {"admin", "x-admin"}


@pytest.fixture
async def server(api: Any, state: Any) -> AsyncIterator[Callable[..., Any]]:
    """A server with these keys."""
    made = []

    def make(api_keys: tuple[str, ...], admin_key: str | None) -> Any:
        state.api_keys, state.admin_key = ApiKeys(api_keys), AdminKey(admin_key)
        made.append(type(api)(create_app(state), state))
        return made[-1].http

    yield make
    for one in made:
        await one.http.aclose()


async def status(http: Any, path: str, headers: dict[str, str]) -> int:
    return (await http.head(path, headers=headers)).status_code


@pytest.mark.parametrize("who", HEADERS)
@pytest.mark.parametrize("api_keys", [(), (API,)])
async def test_with_an_admin_key_it_opens_the_data_and_nothing_else_does(server, api, who: str, api_keys) -> None:
    http = server(api_keys, ADMIN)
    for path in DATA:
        response = await http.get(path, headers=HEADERS[who]) if who not in RIGHT else None
        if response is not None:
            api.assert_error(response, 401, code="invalid_admin_key")
            assert response.headers["www-authenticate"] == "Bearer"
            assert ADMIN not in response.text
    if who in RIGHT:
        assert [await status(http, path, HEADERS[who]) for path in DATA] == [200, 404, 404, 404, 404]


@pytest.mark.parametrize("who", HEADERS)
async def test_with_api_keys_alone_nobody_sees_it_and_is_told_what_would_open_it(server, api, who: str) -> None:
    http = server((API,), None)
    for path in DATA:
        message = api.assert_error(await http.get(path, headers=HEADERS[who]), 403, code="admin_key_needed")
        assert "--admin-key" in message


@pytest.mark.parametrize("who", HEADERS)
async def test_without_keys_it_is_open(server, who: str) -> None:
    assert [await status(server((), None), path, HEADERS[who]) for path in DATA] == [200, 404, 404, 404, 404]


@pytest.mark.parametrize("who", HEADERS)
@pytest.mark.parametrize("admin_key", [None, ADMIN])
@pytest.mark.parametrize("api_keys", [(), (API,)])
async def test_the_page_itself_holds_no_data_and_is_for_everybody(server, who: str, admin_key, api_keys) -> None:
    assert await status(server(api_keys, admin_key), "/dashboard", HEADERS[who]) == 200


@pytest.mark.parametrize("who", sorted(RIGHT))
async def test_the_admin_key_opens_nothing_of_the_api(server, api, who: str) -> None:
    http = server((API,), ADMIN)
    api.assert_error(await http.get("/v1/models", headers=HEADERS[who]), 401, code="invalid_api_key")
    assert await status(http, "/v1/models", HEADERS["api"]) == 200


async def test_an_admin_key_alone_leaves_the_api_open(server) -> None:
    assert await status(server((), ADMIN), "/v1/models", {}) == 200


async def test_a_key_that_is_both_opens_both(server) -> None:
    http = server((API,), API)
    assert await status(http, "/v1/models", HEADERS["api"]) == 200
    assert await status(http, "/dashboard/feed", HEADERS["api"]) == 200


async def test_the_key_is_not_kept_and_not_logged(server, caplog) -> None:
    caplog.set_level("DEBUG")
    http = server((), ADMIN)
    await http.get("/dashboard/pages/1", headers=HEADERS["admin"])
    await http.get("/dashboard/pages/1", headers=HEADERS["part"])
    assert ADMIN[:-1] not in caplog.text + (await http.get("/metrics")).text
    assert ADMIN not in repr(vars(AdminKey(ADMIN)))


def options(*arguments: str) -> ServeOptions:
    return cli._options(cli._parser().parse_args(["serve", *arguments]))


def test_the_key_comes_from_the_flag_or_else_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options().admin_key is None
    assert options("--admin-key", "a").admin_key == "a"
    monkeypatch.setenv("OCTAVO_ADMIN_KEY", "b,c")
    assert options().admin_key == "b,c"
    assert options("--admin-key", "a").admin_key == "a"
    monkeypatch.setenv("OCTAVO_ADMIN_KEY", "")
    assert options().admin_key is None


def test_a_key_is_not_shown_by_whoever_prints_the_options() -> None:
    assert ADMIN not in repr(options("--admin-key", ADMIN))


@pytest.mark.parametrize("key", ["", "a b", "ä", "a\n"])
def test_a_key_that_no_header_could_carry_is_refused(key: str) -> None:
    given = ServeOptions(
        model=None, admin_key=key, host="127.0.0.1", port=0, shutdown_timeout=1.0, engine=EngineConfig(model="")
    )
    with pytest.raises(ConfigError, match="--admin-key: a key is"):
        given.validate()
