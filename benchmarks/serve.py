"""Measure any OpenAI-compatible server: python -m benchmarks.serve --url http://127.0.0.1:8000

Sends streamed, greedy requests of a known shape and prints TTFT, inter-token latency, time per output token and
throughput, with the conditions they were taken under. W1 to W5 are the named workloads; without --workloads one is
made from the length, concurrency and shared-prefix options. With --start it starts the server itself, so that several
can be measured one after the other into one file and shown side by side, each under its --label:

  python -m benchmarks.serve --start "octavo serve --port 8001" --url http://127.0.0.1:8001 --save r.jsonl
  python -m benchmarks.serve --start "another-server --port 8001" --url http://127.0.0.1:8001 --save r.jsonl
  python -m benchmarks.serve --show r.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from tqdm import tqdm

from benchmarks.client import Client, Target
from benchmarks.machine import Conditions, CpuClock, memory_mib, other_cpu_share
from benchmarks.started_server import ServerStartError, StartedServer
from benchmarks.stream import RequestRecord
from benchmarks.summary import format_table, medians, summarise
from benchmarks.workload import WORKLOADS, PromptSource, TokenPrompts, WordPrompts, Workload, make_prompts

WARMUP_WORDS = 64
WARMUP_TOKENS = 8
MOST_SPECIAL_TOKENS = 4


class MeasurementError(Exception):
    """The server cannot be measured: it does not answer, or the first request fails."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run, and how often. ``server_pid`` lets the work of other processes be told from the server's."""

    label: str
    workloads: tuple[Workload, ...]
    repeats: int
    seed: int
    server_pid: int | None = None
    ready_seconds: float | None = None
    progress: bool = True


async def warm_up(client: Client, source: PromptSource) -> PromptSource:
    """Send one request, and learn from its usage how many tokens the server adds to a prompt of words."""
    words = Workload(name="warm-up", requests=1, concurrency=1, input_tokens=WARMUP_WORDS, output_tokens=WARMUP_TOKENS)
    record = await client.request(make_prompts(words, source, seed=0)[0], WARMUP_TOKENS)
    if record.error is not None:
        raise MeasurementError(f"the first request failed: {record.error}")
    if not isinstance(source, WordPrompts) or record.prompt_tokens is None:
        return source
    added = record.prompt_tokens - (WARMUP_WORDS - source.special_tokens)
    if not 0 <= added <= MOST_SPECIAL_TOKENS:
        print(
            f"note: {WARMUP_WORDS} words are {record.prompt_tokens} tokens here: lengths are approximate",
            file=sys.stderr,
        )
        return source
    return dataclasses.replace(source, special_tokens=added)


async def measure(plan: Plan, target: Target, source: PromptSource) -> list[dict[str, Any]]:
    """Run every workload ``plan.repeats`` times; return one result per repeat, ready for a result file."""
    results = []
    async with Client(target) as client:
        source = await warm_up(client, source)
        for workload in plan.workloads:
            for repeat in range(plan.repeats):
                results.append(await _repeat(plan, workload, repeat, client, source, target))
    return results


async def _repeat(
    plan: Plan, workload: Workload, repeat: int, client: Client, source: PromptSource, target: Target
) -> dict[str, Any]:
    prompts = make_prompts(workload, source, plan.seed + repeat)
    conditions = Conditions.now()
    title = f"{plan.label} {workload.name} {repeat + 1}/{plan.repeats}"
    with tqdm(total=len(prompts), desc=title, unit="req", disable=not plan.progress, leave=False) as bar:

        def on_done(record: RequestRecord) -> None:
            bar.update()

        before = CpuClock.read(plan.server_pid)
        records, wall = await client.run(
            prompts, output_tokens=workload.output_tokens, concurrency=workload.concurrency, on_done=on_done
        )
        after = CpuClock.read(plan.server_pid)
    return {
        "label": plan.label,
        "model": target.model,
        "endpoint": target.endpoint,
        "prompts": "text" if isinstance(source, WordPrompts) else "token ids",
        "workload": dataclasses.asdict(workload),
        "seed": plan.seed + repeat,
        "summary": summarise(records, wall).to_dict(),
        "conditions": dataclasses.asdict(conditions),
        "other_cpu_share": other_cpu_share(before, after),
        "server_memory_mib": None if plan.server_pid is None else memory_mib(plan.server_pid),
        "server_ready_seconds": plan.ready_seconds,
    }


def show(results: Sequence[dict[str, Any]]) -> str:
    """The table of medians, the conditions, and the first error, if any."""
    lines = [format_table(medians(results)), "", "Medians of the repeats; times in ms, tokens per repeat."]
    first = results[0]
    lines.append(str(Conditions(**first["conditions"])))
    for label in dict.fromkeys(result["label"] for result in results):
        ready = [result["server_ready_seconds"] for result in results if result["label"] == label][-1]
        memory = [result["server_memory_mib"] or 0 for result in results if result["label"] == label]
        if ready is not None:
            lines.append(f"{label}: ready after {ready:.1f} s, {max(memory):,.0f} MiB")
    errors = [result for result in results if result["summary"]["first_error"]]
    lines += [f"{r['label']} {r['workload']['name']}: {r['summary']['first_error']}" for r in errors[:3]]
    return "\n".join(lines)


def load(path: Path) -> list[dict[str, Any]]:
    """Read a result file. Raises OSError or ValueError if it is none."""
    results = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    if not results:
        raise ValueError(f"{path} holds no results")
    return results


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server, without /v1 (default: %(default)s)")
    parser.add_argument("--model", help="model name in requests (default: the first one the server lists)")
    parser.add_argument("--label", help="name in the table and in the result file (default: the model's)")
    parser.add_argument("--start", metavar="COMMAND", help="start this server first, and stop it in the end")
    parser.add_argument(
        "--ready-timeout", type=float, default=600, metavar="S", help="limit for --start (default: 600)"
    )
    parser.add_argument("--server-pid", type=int, help="a running server's process, to tell its CPU time from others'")

    shape = parser.add_argument_group("workload")
    shape.add_argument("--workloads", help=f"named ones, with commas: {', '.join(WORKLOADS)}")
    shape.add_argument("--requests", type=int, default=32, help="number of requests (default: 32)")
    shape.add_argument("--concurrency", type=int, default=8, help="requests under way at a time (default: 8)")
    shape.add_argument("--input-tokens", type=int, default=256, help="prompt length (default: 256)")
    shape.add_argument("--output-tokens", type=int, default=128, help="output length (default: 128)")
    shape.add_argument("--shared-prefix-tokens", type=int, default=0, help="part of the prompt that is the same in all")
    shape.add_argument(
        "--repeats", type=int, default=3, help="runs of each workload, each with its own prompts (default: 3)"
    )
    shape.add_argument("--seed", type=int, default=0, help="seed of the prompts")

    request = parser.add_argument_group("requests")
    request.add_argument("--tokenizer", type=Path, metavar="FILE", help="tokenizer.json: send token ids, not text")
    request.add_argument("--chat", action="store_true", help="use /v1/chat/completions")
    request.add_argument(
        "--ignore-eos", action=argparse.BooleanOptionalAction, default=True, help="ask for the full output length"
    )
    request.add_argument("--extra", type=orjson.loads, default={}, metavar="JSON", help="merged into every request")
    request.add_argument("--api-key", help="sent as a bearer token")
    request.add_argument("--timeout", type=float, default=600, metavar="S", help="limit for one request (default: 600)")

    output = parser.add_argument_group("output")
    output.add_argument("--save", type=Path, metavar="FILE", help="append one JSON line per repeat")
    output.add_argument(
        "--show", type=Path, metavar="FILE", help="print the table of a result file, and measure nothing"
    )
    return parser


def chosen_workloads(arguments: argparse.Namespace) -> tuple[Workload, ...]:
    """The workloads that the command line names or describes. Raises ValueError for one that cannot be."""
    if arguments.workloads is None:
        return (
            Workload(
                name="custom",
                requests=arguments.requests,
                concurrency=arguments.concurrency,
                input_tokens=arguments.input_tokens,
                output_tokens=arguments.output_tokens,
                shared_tokens=arguments.shared_prefix_tokens,
            ),
        )
    names = [name.strip().upper() for name in arguments.workloads.split(",")]
    if unknown := [name for name in names if name not in WORKLOADS]:
        raise ValueError(f"no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    return tuple(WORKLOADS[name] for name in names)


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure what the command line asks for. Raises MeasurementError, ServerStartError, OSError or ValueError."""
    workloads = chosen_workloads(arguments)
    if arguments.repeats < 1:
        raise ValueError(f"--repeats must be at least 1, not {arguments.repeats}")
    source = TokenPrompts.from_file(arguments.tokenizer) if arguments.tokenizer else WordPrompts()
    target = Target(
        url=arguments.url.rstrip("/"),
        model=arguments.model or "",
        chat=arguments.chat,
        ignore_eos=arguments.ignore_eos,
        api_key=arguments.api_key,
        timeout=arguments.timeout,
        extra=arguments.extra,
    )
    with ExitStack() as stack:
        pid, ready_seconds = arguments.server_pid, None
        if arguments.start:
            server = StartedServer(arguments.start, target.url, arguments.ready_timeout)
            stack.enter_context(server)
            pid, ready_seconds = server.pid, server.ready_seconds
        if not target.model:
            target = dataclasses.replace(target, model=asyncio.run(_first_model(target)))
        plan = Plan(
            label=arguments.label or target.model,
            workloads=workloads,
            repeats=arguments.repeats,
            seed=arguments.seed,
            server_pid=pid,
            ready_seconds=ready_seconds,
            progress=sys.stderr.isatty(),
        )
        return asyncio.run(measure(plan, target, source))


async def _first_model(target: Target) -> str:
    try:
        async with Client(target) as client:
            return await client.first_model()
    except (aiohttp.ClientError, TimeoutError, LookupError, ValueError) as error:
        raise MeasurementError(f"{target.url}/v1/models names no model: {error!r}; give --model") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status, 1 also when any request failed."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        results = load(arguments.show) if arguments.show else run(arguments)
        if arguments.save and not arguments.show:
            with arguments.save.open("ab") as file:
                file.writelines(orjson.dumps(result) + b"\n" for result in results)
    except (MeasurementError, ServerStartError, OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    print(show(results))
    return 1 if any(result["summary"]["errors"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
