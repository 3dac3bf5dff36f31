"""/dashboard/feed over HTTP: how it begins, who leaves, and what other methods get."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from server.dashboard.page_map_feed import PageMapFeed


class Browser:
    """A client of the feed that takes one message at a time, from the app itself."""

    def __init__(self, app: Any, method: str = "GET") -> None:
        self.left = asyncio.Event()
        self.asked = False
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue(maxsize=1)
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": method,
            "path": "/dashboard/feed", "raw_path": b"/dashboard/feed", "root_path": "", "scheme": "http",
            "query_string": b"", "headers": [], "client": ("test", 1), "server": ("octavo", 80),
        }  # fmt: skip
        self.running = asyncio.create_task(app(scope, self._receive, self.sent.put))

    async def _receive(self) -> dict[str, Any]:
        if not self.asked:
            self.asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_the_feed_is_a_stream_that_nothing_between_may_hold_back(app, feed: PageMapFeed) -> None:
    browser = Browser(app)
    start = await browser.sent.get()
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert start["status"] == 200
    assert headers["content-type"].partition(";")[0] == "text/event-stream"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert (await browser.sent.get())["body"].startswith(b"event: layout\ndata: {")
    browser.left.set()
    await browser.running


async def test_who_leaves_without_a_word_is_noticed_while_he_reads_nothing(app, feed: PageMapFeed) -> None:
    browser = Browser(app)
    await browser.sent.get()
    for _ in range(50):
        await asyncio.sleep(0)
    assert browser.sent.full()  # it is being told something, and does not read it
    assert feed.num_watchers == 1
    browser.left.set()
    await browser.running
    assert feed.num_watchers == 0
    assert not feed.is_polling


async def test_too_many_watchers_are_an_ordinary_error(app, api, feed: PageMapFeed) -> None:
    browsers = [Browser(app) for _ in range(3)]
    for browser in browsers:
        assert (await browser.sent.get())["status"] == 200
    response = await api.http.get("/dashboard/feed")
    api.assert_error(response, 503, code="too_many_watchers")
    assert response.headers["retry-after"] == "1"
    for browser in browsers:
        browser.left.set()
        await browser.running


async def test_head_tells_the_kind_of_answer_and_begins_no_watch(api, feed: PageMapFeed) -> None:
    response = await api.http.head("/dashboard/feed")
    assert response.status_code == 200
    assert response.headers["content-type"].partition(";")[0] == "text/event-stream"
    assert not feed.is_polling


@pytest.mark.parametrize(
    "path", ["/dashboard", "/dashboard/feed", "/dashboard/pages/1", "/dashboard/requests/cmpl-1-0-0"]
)
async def test_nothing_can_be_sent_to_the_page_map(api, path: str) -> None:
    response = await api.http.post(path, json={})
    api.assert_error(response, 405, code="method_not_allowed")
    assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD"}


async def test_the_api_document_is_about_the_api(api) -> None:
    paths = (await api.http.get("/openapi.json")).json()["paths"]
    assert [path for path in paths if path.startswith("/dashboard")] == []
