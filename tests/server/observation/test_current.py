"""What is logged while a request is served names that request."""

from __future__ import annotations

import json
import logging

import pytest

from engine.log_format import JsonFormatter
from server.observation.current import log_context


@pytest.fixture
def lines(caplog, monkeypatch) -> list[dict[str, object]]:
    """Records of the server's logger as they would be written."""
    lines: list[dict[str, object]] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JsonFormatter(log_context).format(record)))

    monkeypatch.setattr(logging.getLogger("octavo.server"), "handlers", [Lines()])
    return lines


async def test_a_record_has_the_ids_of_the_request_that_it_is_about(api, engine, lines) -> None:
    def fail() -> None:
        logging.getLogger("octavo.server").warning("in the middle")
        raise ArithmeticError("a defect")

    for _ in range(2):
        engine.scripts.append([*engine.answer("ab", None), fail])
        engine.scripts.pop(-2)
    body = {"model": api.model, "prompt": "hi", "stream": True}
    await api.http.post("/v1/completions", json=body, headers={"x-request-id": "mine"})
    await api.http.post("/v1/completions", json=body)
    assert [(one["message"], one["request_id"] == "mine") for one in lines] == [
        ("in the middle", True), ("a stream failed", True), ("in the middle", False), ("a stream failed", False),
    ]  # fmt: skip
    assert str(lines[0]["id"]).startswith("cmpl-")
    assert str(lines[2]["request_id"]).startswith("cmpl-")
    assert "id" not in lines[2]
    assert "ArithmeticError: a defect" in str(lines[1]["stack"])
