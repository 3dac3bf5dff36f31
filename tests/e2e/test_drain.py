"""What a shutdown does for those that run and those that wait. Ids like J04 name cases known elsewhere."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.conftest import Server

pytestmark = pytest.mark.slow

NUM_TOKENS = 40


def streamed(server: Server) -> list[str]:
    """The events of one streamed completion, to its end."""
    body = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        return [line for line in response.iter_lines() if line]


def test_j04_on_sigterm_the_four_that_run_and_the_four_that_wait_finish_and_nobody_else_starts(
    start_server: Callable[..., Server], tiny_llama_dir: Path
) -> None:
    limits = ("--max-num-seqs", "4", "--num-gpu-blocks-override", "200")
    server = start_server(str(tiny_llama_dir), "--served-model-name", "tiny", *limits)
    engine = server.engine_pid()
    with ThreadPoolExecutor(8) as pool:
        try:
            os.kill(engine, signal.SIGSTOP)  # so that none is over before all are there
            streams = [pool.submit(streamed, server) for _ in range(8)]
            server.wait_until(lambda: server.metrics()["octavo_requests_in_flight"] == 8, "in flight")
            assert server.http.get("/ready").status_code == 200
            server.process.send_signal(signal.SIGTERM)
            server.wait_until(lambda: server.http.get("/ready").status_code == 503, "not ready")
            assert server.http.get("/health").status_code == 200
            late = server.http.post("/v1/completions", json={"model": "tiny", "prompt": [9], "max_tokens": 1})
            assert (late.status_code, late.json()["error"]["code"]) == (503, "shutting_down")
            assert not any(stream.done() for stream in streams)
        finally:
            os.kill(engine, signal.SIGCONT)
        ended = [stream.result(60) for stream in streams]
    for events in ended:
        assert events[-1] == "data: [DONE]"
        assert any('"finish_reason":"length"' in event for event in events)
    assert server.process.wait(30) == 0
