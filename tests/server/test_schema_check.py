"""The check of answers against the types of OpenAI's client finds what is wrong with one."""

from __future__ import annotations

from typing import Any

import httpx
import orjson
import pytest
from starlette.responses import Response

from tests.server.schema_check import TYPES, SchemaCheck, validator

CHUNK = {
    "id": "c",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": None, "finish_reason": None}],
    "usage": None,
}
ERROR = {"error": {"message": "m", "type": "t", "param": None, "code": None}}


async def problems(path: str, body: Any, *, status: int = 200, stream: bool = False) -> list[str]:
    payload = b"".join(b"data: " + orjson.dumps(one) + b"\n\n" for one in body) if stream else orjson.dumps(body)
    kind = "text/event-stream; charset=utf-8" if stream else "application/json"
    check = SchemaCheck(Response(payload, status, media_type=kind))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=check), base_url="http://x") as http:
        await http.post(path)
    assert check.num_checked == (len(body) if stream else 1)
    return check.problems


async def test_right_answers_pass() -> None:
    assert await problems("/v1/chat/completions", [CHUNK, ERROR], stream=True) == []
    assert await problems("/v1/completions", ERROR, status=400) == []


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({k: v for k, v in CHUNK.items() if k != "created"}, "'created' is a required property"),
        (CHUNK | {"object": "chat.completion"}, "$.object"),
        (CHUNK | {"choices": [CHUNK["choices"][0] | {"finish_reason": "eos"}]}, "$.choices[0].finish_reason"),
        ({"error": {"message": "m", "param": None, "code": None}}, "'type' is a required property"),
        ({"error": {"message": "m", "type": "t", "param": None}}, "'code' is a required property"),
    ],
)
async def test_a_chunk_that_is_wrong_is_a_problem(body: dict[str, Any], complaint: str) -> None:
    [problem] = await problems("/v1/chat/completions", [body], stream=True)
    assert complaint in problem


async def test_a_plain_answer_that_is_wrong_is_a_problem() -> None:
    [problem] = await problems("/v1/models", {"object": "list", "data": [{"id": 3}]})
    assert "$.id of Model" in problem or "required" in problem


def test_every_schema_stands_alone() -> None:
    for name in TYPES:
        assert not validator(name).is_valid({})
