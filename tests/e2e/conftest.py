"""Real servers for end-to-end tests: `octavo serve` in its own process, spoken to over HTTP."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.free_port import free_port

ROOT = Path(__file__).resolve().parents[2]


def octavo(*args: str) -> list[str]:
    """The command line of `octavo`, by module, so that it needs no installed script."""
    return [sys.executable, "-c", "import sys; from server.cli import main; sys.exit(main())", *args]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


class Server:
    """A running `octavo serve`; `metrics` and `settled` look at its pages.

    It computes in one thread unless told otherwise: what two would wait for each other beside other tests takes longer.
    """

    def __init__(self, log: Path, *args: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                octavo("serve", "--threads", "1", *args, "--port", str(self.port)),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(),
            )
        self.http = httpx.Client(base_url=self.url, timeout=120)

    def wait_ready(self, seconds: float = 90.0) -> None:
        self.wait_until(lambda: self.http.get("/ready").status_code == 200, "ready", seconds)
        # the table of a start is written by a thread, and readers of the log want it
        self.wait_until(lambda: f"{self.url}/v1" in self.log.read_text(), "said to be serving")

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
        """Poll ``condition``; fails with the server's log when the time is over or the server ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if condition():
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        pytest.fail(f"not {what} after {seconds} s; status {self.process.poll()}; log:\n{self.log.read_text()[-4000:]}")

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its name with labels."""
        samples = {}
        for line in self.http.get("/metrics").text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                samples[name] = float(value)
        return samples

    def total(self, metric: str) -> float:
        """The sum of a metric over its labels."""
        return sum(value for name, value in self.metrics().items() if name.partition("{")[0] == metric)

    def pages(self, state: str) -> float:
        pattern = re.compile(rf'^octavo_kv_pages{{.*state="{state}".*}}$')
        return sum(value for name, value in self.metrics().items() if pattern.match(name))

    def wait_settled(self) -> None:
        """Idle, and every page free or cached: nothing leaked."""
        self.wait_until(
            lambda: (
                self.metrics()["octavo_requests_running"] == 0
                and self.total("octavo_requests_waiting") == 0
                and self.pages("held") == 0
            ),
            "settled",
        )
        metrics = self.metrics()
        assert self.pages("free") + self.pages("cached") == metrics["octavo_kv_pages_capacity"]

    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for child in children:
            if b"engine.process" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        pytest.fail("the server has no engine process")

    def ask_to_stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        self.http.close()
        self.ask_to_stop()
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@contextmanager
def started_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*args: str) -> Server:
        server = Server(tmp_path_factory.mktemp("server") / "log", *args)
        servers.append(server)
        server.wait_ready()
        return server

    yield start
    for server in servers:
        server.ask_to_stop()  # all at once
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Starts servers that live until the module's tests are over, unless stopped before."""
    with started_servers(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def default_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The model that `octavo serve` serves when none is named, in float32."""
    with started_servers(tmp_path_factory) as start:
        yield start("--dtype", "float32", "--max-model-len", "4096")


@pytest.fixture
def settled() -> Iterator[Callable[[Server], Server]]:
    """Wrap a server: after the test it must be idle with every page free or cached."""
    watched: list[Server] = []

    def watch(server: Server) -> Server:
        watched.append(server)
        return server

    yield watch
    for server in watched:
        server.wait_settled()
