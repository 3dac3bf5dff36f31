"""Compare servers on one machine: each is started in turn, measured and stopped, round after round.

    python -m benchmarks.compare \\
        --server octavo http://127.0.0.1:8001 "octavo serve --port 8001" \\
        --server llama.cpp http://127.0.0.1:8002 "llama-server -m model.gguf --port 8002 -t 2 -np 32 -kvu -c 16384"

The first server is the one that the others are held against. Rounds are interleaved, so that a machine that is slower
for a while is slower for all; the table gives medians of the rounds, their least and greatest, and ratios of medians.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks import serve
from benchmarks.machine import Conditions
from benchmarks.started_server import ServerStartError

ROUND_SEEDS = 1000  # between the prompts of two rounds


@dataclasses.dataclass(frozen=True)
class Server:
    """What to start, and where it then answers."""

    label: str
    url: str
    command: str


@dataclasses.dataclass(frozen=True)
class Figure:
    """One column: where it is in a result, and whether more of it is better."""

    title: str
    path: tuple[str, ...]
    more_is_better: bool

    def values(self, results: Sequence[dict[str, Any]]) -> list[float]:
        """Of each result that has it."""
        found = []
        for result in results:
            value: Any = result
            for key in self.path:
                value = None if value is None else value.get(key)
            if value is not None:
                found.append(float(value))
        return found


FIGURES = (
    Figure("output tok/s", ("summary", "output_tokens_per_second"), True),
    Figure("TTFT p50, ms", ("summary", "ttft_ms", "p50"), False),
    Figure("ITL p50, ms", ("summary", "itl_ms", "p50"), False),
    Figure("ready, s", ("server_ready_seconds",), False),
    Figure("memory, MiB", ("server_memory_mib",), False),
)


def measure(server: Server, workloads: str, seed: int, ready_timeout: float) -> list[dict[str, Any]]:
    """One round of one server. Raises what `serve.run` raises."""
    arguments = ["--start", server.command, "--url", server.url, "--label", server.label, "--workloads", workloads]
    arguments += ["--repeats", "1", "--seed", str(seed), "--ready-timeout", str(ready_timeout)]
    return serve.run(serve.build_parser().parse_args(arguments))


def cell(values: Sequence[float]) -> str:
    """Median, and the range where there is one."""
    if not values:
        return "-"
    median = statistics.median(values)
    digits = 1 if median < 100 else 0
    if len(values) == 1:
        return f"{median:,.{digits}f}"
    return f"{median:,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def ratio(first: Sequence[float], other: Sequence[float]) -> str:
    """Median of the first server's over that of another."""
    if not first or not other or not statistics.median(other):
        return "-"
    return f"{statistics.median(first) / statistics.median(other):.2f}"


def table(results: Sequence[dict[str, Any]], labels: Sequence[str]) -> str:
    """A row per workload and server; ratios are the first server's over the row's."""
    heads = ["load", "server", *(figure.title for figure in FIGURES)]
    heads += [f"{labels[0]} / this: {figure.title.split(',')[0]}" for figure in FIGURES[:3]]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for workload in dict.fromkeys(result["workload"]["name"] for result in results):
        of_load = [result for result in results if result["workload"]["name"] == workload]
        first = [result for result in of_load if result["label"] == labels[0]]
        for label in labels:
            own = [result for result in of_load if result["label"] == label]
            cells = [workload, label, *(cell(figure.values(own)) for figure in FIGURES)]
            cells += [ratio(figure.values(first), figure.values(own)) for figure in FIGURES[:3]]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rounds and print the table; status 1 when a request failed, 2 when a server could not be measured."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", nargs=3, action="append", required=True, metavar=("LABEL", "URL", "COMMAND"))
    parser.add_argument("--workloads", default="W1,W2,W3,W4,W5")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ready-timeout", type=float, default=600, metavar="S")
    parser.add_argument("--save", type=Path, metavar="FILE", help="append one JSON line per measurement")
    arguments = parser.parse_args(argv)
    servers = [Server(*given) for given in arguments.server]
    labels = [server.label for server in servers]
    if arguments.rounds < 1 or len(set(labels)) != len(labels):
        parser.error("--rounds must be at least 1, and labels must differ")
    conditions = Conditions.now()
    results: list[dict[str, Any]] = []
    for number in range(arguments.rounds):
        for server in servers:
            try:
                measured = measure(server, arguments.workloads, number * ROUND_SEEDS, arguments.ready_timeout)
            except (serve.MeasurementError, ServerStartError, OSError, ValueError) as error:
                print(f"{parser.prog}: {server.label}: {error}", file=sys.stderr)
                return 2
            results += measured
            if arguments.save:
                with arguments.save.open("ab") as file:
                    file.writelines(orjson.dumps(result) + b"\n" for result in measured)
    print(f"{conditions}\n\n{table(results, labels)}")
    errors = [result for result in results if result["summary"]["errors"]]
    for result in errors[:3]:
        print(f"{result['label']} {result['workload']['name']}: {result['summary']['first_error']}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
