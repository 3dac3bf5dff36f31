"""What guessing tokens (`octavo serve --speculative ngram`) brings, by kind of text and by how it is drawn.

    python -m benchmarks.speculation
    python -m benchmarks.speculation --model model.gguf --rounds 5 --temperature 0.7

Two servers run side by side, one with guesses and one without; each prompt goes to one and at once to the other, one
request at a time, round after round, so that a machine that is slower for a while is slower for both. The table gives
medians of the rounds' tokens a second, of their ratio (with its range), and how many guessed tokens were right.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import statistics
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.client import Client, Target
from benchmarks.machine import Conditions
from benchmarks.speculation_prompts import PROMPTS
from benchmarks.started_server import ServerStartError, StartedServer
from benchmarks.stream import RequestRecord

DRAFTED, ACCEPTED = "octavo_spec_draft_tokens_total", "octavo_spec_accepted_tokens_total"


class MeasurementError(Exception):
    """A request failed."""


@dataclass(frozen=True)
class Measured:
    """One round of one kind of text: tokens a second of decoding without guesses and with, and what was guessed."""

    plain: float
    guessing: float
    drafted: float
    accepted: float
    tokens: int


def decode_rate(records: Sequence[RequestRecord]) -> float:
    """Tokens after the first of each answer, over the seconds from its first to its last."""
    tokens = sum(record.output_tokens - 1 for record in records)
    return tokens / sum(record.chunk_times[-1] - record.chunk_times[0] for record in records)


def read_counters(url: str) -> tuple[float, float]:
    """Tokens that a server guessed so far, and those that were right."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if line.startswith((DRAFTED, ACCEPTED)))
    return float(values[DRAFTED]), float(values[ACCEPTED])


async def ask(client: Client, prompt: str, tokens: int, concurrency: int) -> list[RequestRecord]:
    """The same prompt from so many clients at once. Raises MeasurementError."""
    records, _ = await client.run([prompt] * concurrency, output_tokens=tokens, concurrency=concurrency)
    for record in records:
        if record.error is not None:
            raise MeasurementError(record.error)
    return records


async def measure(plain: Client, guessing: Client, url: str, kind: str, tokens: int, concurrency: int) -> Measured:
    """One round of one kind of text; who is asked first changes from prompt to prompt."""
    before = read_counters(url)
    records: tuple[list[RequestRecord], list[RequestRecord]] = ([], [])
    turns = [(plain, records[0]), (guessing, records[1])]
    for prompt in PROMPTS[kind]:
        for client, own in turns:
            own += await ask(client, prompt, tokens, concurrency)
        turns.reverse()
    after = read_counters(url)
    return Measured(
        plain=decode_rate(records[0]),
        guessing=decode_rate(records[1]),
        drafted=after[0] - before[0],
        accepted=after[1] - before[1],
        tokens=sum(record.output_tokens for record in records[1]),
    )


def table(measured: dict[str, list[Measured]]) -> str:
    """A row for each kind of text."""
    lines = [
        "| text | tok/s without | tok/s with | with / without | guessed tokens that were right | of all tokens |",
        "|---|---|---|---|---|---|",
    ]
    for kind, rounds in measured.items():
        ratios = [one.guessing / one.plain for one in rounds]
        drafted, accepted = sum(one.drafted for one in rounds), sum(one.accepted for one in rounds)
        cells = [
            kind,
            f"{statistics.median(one.plain for one in rounds):.1f}",
            f"{statistics.median(one.guessing for one in rounds):.1f}",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            f"{accepted / drafted:.0%} of {drafted:,.0f}" if drafted else "none guessed",
            f"{accepted / sum(one.tokens for one in rounds):.0%}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


async def run(urls: tuple[str, str], arguments: argparse.Namespace) -> dict[str, list[Measured]]:
    """All rounds, after one that warms up."""
    extra = {"temperature": arguments.temperature, "seed": 1}
    targets = [Target(url=url, model=arguments.name, extra=extra) for url in urls]
    measured: dict[str, list[Measured]] = {kind: [] for kind in PROMPTS}
    async with Client(targets[0]) as plain, Client(targets[1]) as guessing:
        for number in range(arguments.rounds + 1):
            for kind, rounds in measured.items():
                one = await measure(plain, guessing, urls[1], kind, arguments.tokens, arguments.concurrency)
                if number:
                    rounds.append(one)
    return measured


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speculation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", help="a model as `octavo serve` takes it (default: the demo model)")
    parser.add_argument("--octavo", default="octavo", metavar="COMMAND", help="how to call octavo")
    parser.add_argument("--serve-flags", default="--max-model-len 2048", help="flags of both servers")
    parser.add_argument("--num-speculative-tokens", type=int, default=4, metavar="N")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=160, help="length of an answer; end tokens are ignored")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--concurrency", type=int, default=1, help="requests that run at once")
    parser.add_argument("--port", type=int, default=8210, help="of the first server; the second has the next")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; status 2 when something could not be measured."""
    arguments = build_parser().parse_args(argv)
    arguments.name = "measured"
    serve = f"{arguments.octavo} serve {shlex.quote(arguments.model) if arguments.model else ''} "
    serve += f"--served-model-name {arguments.name} {arguments.serve_flags} --port "
    guess = f" --speculative ngram --num-speculative-tokens {arguments.num_speculative_tokens}"
    urls = (f"http://127.0.0.1:{arguments.port}", f"http://127.0.0.1:{arguments.port + 1}")
    conditions = Conditions.now()
    try:
        with ExitStack() as stack:
            stack.enter_context(StartedServer(f"{serve}{arguments.port}", urls[0], 600.0))
            stack.enter_context(StartedServer(f"{serve}{arguments.port + 1}{guess}", urls[1], 600.0))
            measured = asyncio.run(run(urls, arguments))
    except (MeasurementError, ServerStartError, OSError) as error:
        print(f"python -m benchmarks.speculation: {error}", file=sys.stderr)
        return 2
    print(f"{conditions}\n\n{table(measured)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
