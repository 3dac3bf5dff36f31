"""What a line of log and a trace of each request cost the API process: CPU time per request, beside that without them.

    python -m benchmarks.request_cost
    python -m benchmarks.request_cost --tokens 64 --requests 500

The API process is the real one (app, middleware, uvicorn on a socket, the engine's client) over an engine without a
model, which answers at once. One connection asks for one completion after the other; of servers that log nothing, log
text, log JSON, and trace all beside that, each takes its turn in every round. CPU time is the kernel's account of the
API process, its threads for lines and spans included; spans go to a collector in this process, which reads and forgets.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import socket
import statistics
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson

from benchmarks.fed_engine import INTERVAL_VARIABLE, STREAMS_VARIABLE
from benchmarks.fed_server import LOG_VARIABLE, MODEL_NAME, TRACES_VARIABLE
from benchmarks.machine import PROC, Conditions
from benchmarks.started_server import StartedServer
from benchmarks.streaming_cost import HOST, PROMPT, START_SECONDS

WARM_UP_REQUESTS = 50


@dataclass(frozen=True, slots=True)
class Variant:
    """A server to measure: what is told of its requests."""

    name: str
    log_format: str = ""
    traces: bool = False


VARIANTS = (
    Variant("nothing"),
    Variant("log, text", "text"),
    Variant("log, JSON", "json"),
    Variant("log, JSON, and trace", "json", traces=True),
)


class _Collector(BaseHTTPRequestHandler):
    """Takes what comes."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """The URL of a collector, while the context lasts."""
    server = ThreadingHTTPServer((HOST, 0), _Collector)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{HOST}:{server.server_port}/v1/traces"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def started(variant: Variant, traces_url: str) -> Iterator[tuple[int, HTTPConnection]]:
    """The process id of a server and a connection to it."""
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    os.environ[LOG_VARIABLE] = variant.log_format
    os.environ[TRACES_VARIABLE] = traces_url if variant.traces else ""
    command = shlex.join([sys.executable, "-m", "benchmarks.fed_server", str(port)])
    with StartedServer(command, f"http://{HOST}:{port}", START_SECONDS) as server:
        connection = HTTPConnection(HOST, port)
        yield server.pid, connection
        connection.close()


def _cpu_seconds(pid: int) -> float:
    """Of all threads of a process, to the nanosecond (man 5 proc, schedstat); ticks are as long as ten requests."""
    return sum(int(path.read_text().split()[0]) for path in PROC.glob(f"{pid}/task/*/schedstat")) / 1e9


def measure(pid: int, connection: HTTPConnection, num_requests: int, num_tokens: int) -> float:
    """CPU microseconds per request. Raises ValueError for an error."""
    body = orjson.dumps({"model": MODEL_NAME, "prompt": PROMPT, "max_tokens": num_tokens, "ignore_eos": True})
    before = _cpu_seconds(pid)
    for _ in range(num_requests):
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise ValueError(answer.decode(errors="replace"))
    return 1e6 * (_cpu_seconds(pid) - before) / num_requests


def table(costs: dict[str, list[float]]) -> str:
    """Medians over the rounds, what they are above the first, and their ratio to it."""
    [base, *_] = [statistics.median(values) for values in costs.values()]
    rows = ["| told of each request | CPU us per request | more | ratio |", "|---|---|---|---|"]
    for name, values in costs.items():
        median = statistics.median(values)
        rows.append(f"| {name} | {median:.0f} | {median - base:.0f} | {median / base:.2f} |")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000, help="of each round")
    parser.add_argument("--tokens", type=int, default=1, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    os.environ[STREAMS_VARIABLE] = "1"
    os.environ[INTERVAL_VARIABLE] = "0"
    conditions = Conditions.now()
    costs: dict[str, list[float]] = {variant.name: [] for variant in VARIANTS}
    with collector() as url, contextlib.ExitStack() as stack:
        servers = {variant.name: stack.enter_context(started(variant, url)) for variant in VARIANTS}
        for server in servers.values():
            measure(*server, WARM_UP_REQUESTS, options.tokens)
        for _ in range(options.rounds):
            for name, server in servers.items():
                costs[name].append(measure(*server, options.requests, options.tokens))
    print(table(costs))
    print(f"\n{conditions}; {options.tokens} tokens a request, {options.requests} requests a round")
    return 0


if __name__ == "__main__":
    sys.exit(main())
