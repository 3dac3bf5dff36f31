"""A small OpenAI-compatible server in the test's own event loop, with answers that are known to the last token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from aiohttp import web


@dataclass
class FakeServer:
    """Answers each completion with ``max_tokens`` tokens; keeps what it was asked.

    Requests from number ``fail_from`` on get 503.
    """

    url: str = ""
    bos_tokens: int = 1
    fail_from: int | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "fake-model"}, {"id": "other"}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        if self.fail_from is not None and len(self.bodies) > self.fail_from:
            return web.json_response({"error": {"message": "no free pages"}}, status=503)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for index in range(body["max_tokens"]):
            finish = "length" if index == body["max_tokens"] - 1 else None
            if "messages" in body:
                choice: dict[str, Any] = {"delta": {"content": "x"}, "finish_reason": finish}
            else:
                choice = {"text": "x", "finish_reason": finish}
            await response.write(b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n")
        usage = {
            "prompt_tokens": self.count(body),
            "completion_tokens": body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": 2},
        }
        await response.write(b"data: " + orjson.dumps({"choices": [], "usage": usage}) + b"\n\ndata: [DONE]\n\n")
        return response

    def count(self, body: dict[str, Any]) -> int:
        prompt = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        return len(prompt) if isinstance(prompt, list) else self.bos_tokens + len(prompt.split())


@pytest.fixture
async def fake_server() -> AsyncIterator[FakeServer]:
    server = FakeServer()
    app = web.Application()
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/v1/completions", server.complete)
    app.router.add_post("/v1/chat/completions", server.complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()
