"""What a streamed token costs the API process: CPU time per token and stream, HTTP and the engine's messages included.

    python -m benchmarks.streaming_cost
    python -m benchmarks.streaming_cost --path chat --streams 64 --tokens 500

The API process is the real one (app, middleware, uvicorn on a socket, the engine's client); an engine without a model
feeds it one token for each stream every ``--interval`` milliseconds, and this process reads the streams. CPU time is
the kernel's account of that one process (/proc/PID/stat, user and system), from the step in which the last stream has
had its first tokens until shortly before the first one ends. "chunks per token" below 1 means that the process could
not keep up and merged tokens, which makes each cheaper: then the interval is too short for this machine.
"""

from __future__ import annotations

import argparse
import os
import selectors
import shlex
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from benchmarks.fed_engine import INTERVAL_VARIABLE, STREAMS_VARIABLE
from benchmarks.machine import PROC, Conditions
from benchmarks.started_server import StartedServer

HOST = "127.0.0.1"
MODEL = "fed"
EDGE_TOKENS = 10  # of each stream, at both ends, that are not measured
START_SECONDS = 60.0
SILENCE_SECONDS = 30.0
TARGET_MICROSECONDS = 25
PROMPT = (
    "The engine of a press folds one sheet into sixteen pages. Each of them is numbered, none is lost, and the reader "
    "who turns them never sees how they were laid out, printed on both sides and cut."
)
PATHS: dict[str, tuple[str, dict[str, object]]] = {
    "completions": ("/v1/completions", {"prompt": PROMPT}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}]}),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU microseconds per token, and chunks per token as clients saw them."""

    user: float
    system: float
    chunks_per_token: float

    @property
    def total(self) -> float:
        return self.user + self.system


def _cpu_seconds(pid: int) -> tuple[float, float]:
    """User and system time of a process so far (man 5 proc)."""
    text = (PROC / str(pid) / "stat").read_text()
    fields = text[text.rindex(")") + 2 :].split()
    tick = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / tick, int(fields[12]) / tick


def _request(path: str, port: int, num_tokens: int) -> bytes:
    target, fields = PATHS[path]
    body = orjson.dumps(
        {"model": MODEL, "max_tokens": num_tokens, "stream": True, "temperature": 0, "ignore_eos": True, **fields}
    )
    head = f"POST {target} HTTP/1.1\r\nHost: {HOST}:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def measure(path: str, pid: int, port: int, num_streams: int, num_tokens: int) -> Cost:
    """One round of streams, all at once. Raises TimeoutError when the server falls silent, ValueError for an error."""
    selector = selectors.DefaultSelector()
    counts = [0] * num_streams
    for number in range(num_streams):
        connection = socket.create_connection((HOST, port))
        connection.sendall(_request(path, port, num_tokens))
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ, number)
    lagging, total, last_total = num_streams, 0, num_streams * (num_tokens - EDGE_TOKENS)
    begun: tuple[tuple[float, float], int] | None = None
    ended: tuple[tuple[float, float], int] | None = None
    while selector.get_map():
        ready = selector.select(SILENCE_SECONDS)
        if not ready:
            raise TimeoutError(f"no stream said anything for {SILENCE_SECONDS:g} s")
        for key, _ in ready:
            data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
            if b"data: [DONE]" in data or not data:
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
            if b'"error"' in data or b"HTTP/1.1 4" in data:
                raise ValueError(data.decode(errors="replace"))
            chunks = data.count(b"data: {")
            total += chunks
            if counts[key.data] < EDGE_TOKENS <= counts[key.data] + chunks:
                lagging -= 1
            counts[key.data] += chunks
        if begun is None and not lagging:
            begun = _cpu_seconds(pid), total
        if ended is None and total >= last_total:
            ended = _cpu_seconds(pid), total
    if begun is None or ended is None:
        raise ValueError("the streams merged so many tokens that there is nothing to measure: lengthen --interval")
    (user, system), first = begun
    chunks = ended[1] - first
    tokens = num_streams * num_tokens
    seen = chunks * tokens / total
    return Cost(1e6 * (ended[0][0] - user) / seen, 1e6 * (ended[0][1] - system) / seen, total / tokens)


def table(costs: Sequence[Cost], *, path: str, num_streams: int) -> str:
    """Medians over the rounds, with their range."""
    totals = [cost.total for cost in costs]
    user = statistics.median(cost.user for cost in costs)
    system = statistics.median(cost.system for cost in costs)
    ratio = statistics.median(cost.chunks_per_token for cost in costs)
    return "\n".join(
        [
            "| path | streams | CPU us per token | range | user | system | chunks per token |",
            "|---|---|---|---|---|---|---|",
            f"| {path} | {num_streams} | {statistics.median(totals):.1f} | {min(totals):.1f} to {max(totals):.1f} "
            f"| {user:.1f} | {system:.1f} | {ratio:.2f} |",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", choices=PATHS, default="completions")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=200, help="of each stream")
    parser.add_argument("--interval", type=float, default=30.0, help="milliseconds between steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", help="whose tokenizer is used; the default model's if not given")
    options = parser.parse_args(arguments)
    if options.tokens <= 2 * EDGE_TOKENS:
        parser.error(f"--tokens must be above {2 * EDGE_TOKENS}")
    os.environ[STREAMS_VARIABLE] = str(options.streams)
    os.environ[INTERVAL_VARIABLE] = str(options.interval / 1000)
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.fed_server", str(port), *([options.model] if options.model else [])]
    conditions = Conditions.now()
    with StartedServer(shlex.join(command), f"http://{HOST}:{port}", START_SECONDS) as server:
        costs = []
        for _ in range(options.rounds):
            costs.append(measure(options.path, server.pid, port, options.streams, options.tokens))
            time.sleep(0.2)  # until the last streams are over in the engine too
    print(table(costs, path=options.path, num_streams=options.streams))
    print(f"\n{conditions}; a step every {options.interval:g} ms; the target is {TARGET_MICROSECONDS} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
