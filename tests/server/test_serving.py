"""`octavo serve` as a process, from its start to its end, on a tiny model. Ids like J04 name cases known elsewhere."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from engine.client import MAX_RESTARTS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


class Server:
    """A running `octavo serve`; ``errors`` is what it printed so far."""

    def __init__(self, model: Path, *flags: str) -> None:
        command = [sys.executable, "-m", "server.cli", "serve", str(model), "--port", "0", "--device", "cpu"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [*command, "--threads", "1", "--num-gpu-blocks-override", "200", "--served-model-name", "tiny", *flags],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        self.errors = ""

    def until_printed(self, pattern: str) -> re.Match[str]:
        """Wait for a line of stderr that matches ``pattern``."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors += line
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"ended without {pattern!r}: {self.errors}")

    def url(self) -> str:
        return self.until_printed(r"serving +(http://\S+)/v1")[1]

    def end(self) -> int:
        """The exit status, once it has ended."""
        assert self.process.stderr is not None
        self.errors += self.process.stderr.read()
        return self.process.wait(PATIENCE)


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    servers: list[Server] = []
    yield servers
    for server in servers:
        server.process.kill()
        server.process.wait()
        assert server.process.stderr is not None
        server.process.stderr.close()


def start(servers: list[Server], model: Path, *flags: str) -> Server:
    servers.append(Server(model, *flags))
    return servers[-1]


def long_stream(client: httpx.Client, max_tokens: int):
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    return client.stream("POST", "/v1/completions", json=body)


def test_j04_on_sigterm_new_requests_get_503_and_running_ones_finish(servers, tiny_llama_dir: Path) -> None:
    server = start(servers, tiny_llama_dir)
    with httpx.Client(base_url=server.url(), timeout=PATIENCE) as client:
        assert client.get("/ready").status_code == 200
        with long_stream(client, 1500) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            server.until_printed("shutting down")
            assert client.get("/ready").status_code == 503
            assert client.get("/health").status_code == 200
            new = client.post("/v1/completions", json={"model": "tiny", "prompt": "x"})
            assert (new.status_code, new.json()["error"]["code"]) == (503, "shutting_down")
            rest = list(filter(None, lines))
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-2]
    assert server.end() == 0
    assert "Traceback" not in server.errors


def test_j04_what_runs_longer_than_the_shutdown_timeout_ends_in_an_error_event(servers, tiny_llama_dir: Path) -> None:
    server = start(servers, tiny_llama_dir, "--shutdown-timeout", "0.2")
    with (
        httpx.Client(base_url=server.url(), timeout=PATIENCE) as client,
        long_stream(client, 2000) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        rest = list(filter(None, lines))
    assert rest[-1] == "data: [DONE]"
    assert '"error"' in rest[-2]
    assert server.end() == 0


@pytest.mark.alone
def test_j06_an_idle_server_ends_at_once_on_sigint(servers, tiny_llama_dir: Path) -> None:
    server = start(servers, tiny_llama_dir)
    with httpx.Client(base_url=server.url(), timeout=PATIENCE) as client:  # an open keep-alive connection
        assert client.get("/health").status_code == 200
        began = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        assert server.end() == 0
        assert time.monotonic() - began < 8.0  # 1 s alone on a machine, of which torch's own end takes most
    assert "Traceback" not in server.errors


def test_j06_a_second_signal_ends_it_though_a_request_runs(servers, tiny_llama_dir: Path) -> None:
    server = start(servers, tiny_llama_dir)
    with (
        httpx.Client(base_url=server.url(), timeout=PATIENCE) as client,
        long_stream(client, 2000) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGINT)
        server.until_printed("shutting down")
        server.process.send_signal(signal.SIGINT)
        assert server.end() == 128 + signal.SIGINT


def test_a_server_whose_engine_dies_again_and_again_says_so_and_ends_with_status_1(servers, tiny_llama_dir) -> None:
    server = start(servers, tiny_llama_dir)
    server.url()
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    for death in range(MAX_RESTARTS + 1):
        [engine] = children.read_text().split()
        os.kill(int(engine), signal.SIGKILL)
        if death < MAX_RESTARTS:
            server.until_printed("serves again")
    assert server.end() == 1
    assert server.errors.count("giving up") == 1
    assert "Traceback" not in server.errors


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_a_signal_while_the_model_loads_ends_it(servers, tiny_llama_dir: Path) -> None:
    server = start(servers, tiny_llama_dir)
    assert server.process.poll() is None
    time_limit = time.monotonic() + PATIENCE
    while not catches(server.process.pid, signal.SIGTERM):
        assert time.monotonic() < time_limit
        assert server.process.poll() is None
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    assert children.read_text().split()  # the engine, which loads
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    assert "Traceback" not in server.errors


def test_a_model_that_cannot_be_loaded_is_one_sentence(servers, tiny_llama_dir: Path, tmp_path: Path) -> None:
    config = (tiny_llama_dir / "config.json").read_text().replace("LlamaForCausalLM", "OddForCausalLM")
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny_llama_dir.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    (broken / "config.json").write_text(config.replace('"model_type": "llama"', '"model_type": "odd"'))
    server = start(servers, broken)
    assert server.end() == 1
    [line] = server.errors.splitlines()
    assert line.startswith("octavo: ")
    assert "odd" in line.lower()


@pytest.mark.parametrize("flags", [("--max-model-len", "-1"), ("--port", "{port}")])
def test_a_start_that_is_refused_leaves_no_process(servers, tiny_llama_dir: Path, flags: tuple[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        name, value = flags
        server = start(servers, tiny_llama_dir, name, value.format(port=taken.getsockname()[1]))
        assert server.end() == 1
    [line] = server.errors.splitlines()
    assert name.removeprefix("--") in line
    assert not [process for process in Path("/proc").glob("[0-9]*/stat") if session_of(process) == server.process.pid]


def session_of(stat: Path) -> int | None:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[3])
    except OSError:
        return None
