"""A server that starts again maps what the first one packed, and says the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Server

PROMPTS = ["List: 1, 2, 3,", "Question: What is the capital of France?\nAnswer:", "def fibonacci(n):"]


@pytest.fixture
def start(default_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Server]]:
    """Servers that keep what they keep in a directory of this test."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    servers: list[Server] = []

    def start() -> Server:
        server = Server(tmp_path / f"log{len(servers)}", str(default_gguf), "--served-model-name", "m")
        servers.append(server)
        server.wait_ready()
        return server

    yield start
    for server in servers:
        server.stop()


def answers(server: Server) -> list[str]:
    bodies = [{"model": "m", "prompt": prompt, "max_tokens": 24, "temperature": 0} for prompt in PROMPTS]
    return [server.http.post("/v1/completions", json=body).json()["choices"][0]["text"] for body in bodies]


def test_a_second_start_maps_the_weights_and_says_the_same(start: Callable[[], Server], tmp_path: Path) -> None:
    first = start()
    wanted = answers(first)
    first.wait_until(lambda: "are kept in" in first.log.read_text(), "kept", 60)
    assert first.stop() == 0
    (file,) = (tmp_path / "packed").iterdir()
    assert f"MB, are kept in {file} for the next start" in first.log.read_text()
    assert "packed in" not in first.log.read_text()
    second = start()
    assert f"packed in    {file}\n" in second.log.read_text()
    assert answers(second) == wanted
