"""Responses over the scripted engine, and what every stream of them must look like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest


class ResponsesApi:
    """Requests to /v1/responses."""

    def __init__(self, http: httpx.AsyncClient, model: str) -> None:
        self.http = http
        self.model = model

    async def create(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/responses", json={"model": self.model, "input": "hi"} | fields)

    async def made(self, **fields: Any) -> Any:
        response = await self.create(**fields)
        assert response.status_code == 200, response.text
        return response.json()

    async def events(self, **fields: Any) -> list[Any]:
        """The events of a stream, whose names and numbers are right."""
        response = await self.create(stream=True, **fields)
        assert response.headers["content-type"].startswith("text/event-stream"), response.text
        return read_events(response.text)


def read_events(text: str) -> list[Any]:
    assert text.endswith("\n\n")
    events = []
    for frame in text.removesuffix("\n\n").split("\n\n"):
        if frame.startswith(": "):
            continue
        name, data = frame.split("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        events.append(event)
    return events


@pytest.fixture
def responses(api) -> ResponsesApi:
    return ResponsesApi(api.http, api.model)


@pytest.fixture
def read_stream() -> Callable[[str], list[Any]]:
    return read_events
