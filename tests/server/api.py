"""Api: requests to an app in this process, and what its answers must always look like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx
import orjson
from fastapi import FastAPI
from starlette.types import Message

from scheduler.request import FinishReason
from server.state import ServerState
from tests.server.schema_check import SchemaCheck

MODEL = "org/tiny"


class Api:
    """Requests to the app, and what its answers must always look like."""

    def __init__(self, app: FastAPI, state: ServerState) -> None:
        self.app = app
        self.model = MODEL
        self.state = state
        self.checked = SchemaCheck(app)
        transport = httpx.ASGITransport(app=self.checked, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://octavo")

    async def completion(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"model": MODEL, "prompt": "hi"} | fields)

    async def chat(self, **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "hi"}]
        return await self.http.post("/v1/chat/completions", json={"model": MODEL, "messages": messages} | fields)

    async def metric(self, sample: str) -> float:
        """The value of one line of /metrics."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        [value] = [line.removeprefix(sample + " ") for line in lines if line.startswith(sample + " ")]
        return float(value)

    async def outcomes(self) -> dict[str, int]:
        """Requests ended, by outcome; outcomes without any left out."""
        counts = {name: int(await self.metric(f'octavo_requests_total{{outcome="{name}"}}')) for name in FinishReason}
        return {str(name): count for name, count in counts.items() if count}

    async def raw(self, path: str, body: bytes, leave: asyncio.Event, *, whole: bool = True) -> AsyncIterator[Message]:
        """The ASGI messages that answer a POST whose client leaves when ``leave`` is set; ``whole``: with all sent."""
        sent: asyncio.Queue[Message | None] = asyncio.Queue()
        incoming: list[Message] = [{"type": "http.request", "body": body, "more_body": not whole}]

        async def receive() -> Message:
            if incoming:
                return incoming.pop(0)
            await leave.wait()
            return {"type": "http.disconnect"}

        async def run() -> None:
            scope = {
                "type": "http",
                "asgi": {"version": "3.0", "spec_version": "2.3"},
                "http_version": "1.1",
                "method": "POST",
                "path": path,
                "raw_path": path.encode(),
                "root_path": "",
                "scheme": "http",
                "query_string": b"",
                "headers": [],
                "client": ("test", 1),
                "server": ("octavo", 80),
            }
            try:
                await self.app(scope, receive, sent.put)
            finally:
                await sent.put(None)

        running = asyncio.create_task(run())
        while (message := await sent.get()) is not None:
            yield message
        await running

    @staticmethod
    def events(text: str) -> list[Any]:
        """The decoded events of a stream, whose last is the string "[DONE]"."""
        frames = text.removesuffix("\n\n").split("\n\n")
        payloads = [frame.removeprefix("data: ") for frame in frames]
        assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
        assert payloads[-1] == "[DONE]"
        return [orjson.loads(payload) for payload in payloads[:-1]] + ["[DONE]"]

    @staticmethod
    def assert_error(
        response: httpx.Response, status: int, *, param: str | None = None, code: str | None = None
    ) -> str:
        """Check that ``response`` is an error object and nothing else; its message."""
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/json"
        body = response.json()
        assert body.keys() == {"error"}
        error = body["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        kinds = {429: "rate_limit_error"}
        assert error["type"] == kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
        final = (status < 500 and status != 429) or code == "timeout"
        assert response.headers.get("x-should-retry") == ("false" if final else None)
        assert (error["param"], error["code"]) == (param, code)
        message = error["message"]
        assert isinstance(message, str)
        assert message
        return message

    @staticmethod
    def joined(chunks: Iterable[Any], index: int = 0) -> str:
        """The text of one choice of a streamed completion."""
        return "".join(
            c["text"] for chunk in chunks if chunk != "[DONE]" for c in chunk["choices"] if c["index"] == index
        )
