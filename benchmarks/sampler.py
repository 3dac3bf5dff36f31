"""What a step's sampling costs on a CPU: milliseconds for batches of logits, by the native kernel and by torch.

    python -m benchmarks.sampler
    python -m benchmarks.sampler --spread 1 --batches 32 --repeats 21

Rows of normally distributed logits; every row of a batch has the same parameters and a draw of its own. *sort* is what
a few lines of torch do: softmax, sort, cumulative sum, draw, for the whole batch at once; *rule in torch* is the
engine's own sampler where the native library is missing. All are timed in turn, repeat by repeat, so that other work
on the machine meets them alike; medians, and the least of all repeats in brackets.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.machine import Conditions
from engine.sampler import Sampler, uniform_draw
from engine.sampling_params import SamplingParams
from kernels.cpu.library import NativeLibrary

TEMPERATURE = 0.8
CASES = {
    "greedy": SamplingParams(max_tokens=1, temperature=0.0),
    "temperature": SamplingParams(max_tokens=1, temperature=TEMPERATURE),
    "top-k 50": SamplingParams(max_tokens=1, temperature=TEMPERATURE, top_k=50),
    "top-p 0.9": SamplingParams(max_tokens=1, temperature=TEMPERATURE, top_p=0.9),
    "min-p 0.05": SamplingParams(max_tokens=1, temperature=TEMPERATURE, min_p=0.05),
}


@dataclass(frozen=True)
class Row:
    """A line of the table: milliseconds of each repeat by who computed it."""

    case: str
    batch: int
    milliseconds: dict[str, list[float]]


def sort_and_draw(logits: torch.Tensor, params: SamplingParams, draws: torch.Tensor) -> torch.Tensor:
    """A token id per row as a few batched torch operations give it, for the same parameters in every row."""
    if params.temperature == 0.0:
        return logits.argmax(dim=-1)
    probabilities = torch.softmax(logits / params.temperature, dim=-1)
    if params.top_k == 0 and params.top_p == 1.0 and params.min_p == 0.0:
        cumulative = probabilities.cumsum(dim=-1)
        return torch.searchsorted(cumulative, draws[:, None] * cumulative[:, -1:], right=True)[:, 0]
    ordered, token_ids = probabilities.sort(dim=-1, descending=True)
    if params.top_k:
        ordered[:, params.top_k :] = 0.0
    if params.top_p < 1.0:
        ordered[ordered.cumsum(dim=-1) - ordered >= params.top_p] = 0.0
    ordered[ordered < params.min_p * ordered[:, :1]] = 0.0
    cumulative = ordered.cumsum(dim=-1)
    places = torch.searchsorted(cumulative, draws[:, None] * cumulative[:, -1:], right=True)
    return token_ids.gather(1, places.clamp(max=logits.shape[1] - 1))[:, 0]


def measure(logits: torch.Tensor, params: SamplingParams, repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each repeat, by name."""
    draws = [uniform_draw(1, index) for index in range(len(logits))]
    every = [params] * len(logits)
    contenders: dict[str, Callable[[], object]] = {
        "native": partial(Sampler(NativeLibrary()).sample, logits, every, draws),
        "rule in torch": partial(Sampler().sample, logits, every, draws),
        "sort": partial(sort_and_draw, logits, params, torch.tensor(draws)),
    }
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(-1, repeats):  # the first warms up
        for name, contender in contenders.items():
            started = time.perf_counter()
            contender()
            if repeat >= 0:
                found[name].append(1e3 * (time.perf_counter() - started))
    return found


def table(rows: Sequence[Row]) -> str:
    """Markdown; the last column is the share of *sort* that the native kernel takes, least by least."""
    names = list(rows[0].milliseconds)
    lines = [f"| parameters | batch | {' | '.join(names)} | native / sort |", "|---" * (3 + len(names)) + "|"]
    for row in rows:
        cells = [f"{statistics.median(times):.2f} ({min(times):.2f})" for times in row.milliseconds.values()]
        ratio = min(row.milliseconds["native"]) / min(row.milliseconds["sort"])
        lines.append(f"| {row.case} | {row.batch} | {' | '.join(cells)} | {ratio:.3f} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.sampler", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--vocab-size", type=int, default=262_144)
    parser.add_argument("--batches", default="1,8,32", help="rows, separated by commas")
    parser.add_argument("--spread", type=float, default=3.0, help="standard deviation of the logits")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    batches = [int(batch) for batch in arguments.batches.split(",")]
    generator = torch.Generator().manual_seed(0)
    logits = arguments.spread * torch.randn(max(batches), arguments.vocab_size, generator=generator)
    print(Conditions.now())
    rows = [
        Row(case, batch, measure(logits[:batch], params, arguments.repeats))
        for case, params in CASES.items()
        for batch in batches
    ]
    print(
        f"\nms, median (least) of {arguments.repeats}; {arguments.threads} threads; {arguments.vocab_size:,} tokens, "
        f"normal with a standard deviation of {arguments.spread:g}; temperature {TEMPERATURE:g}\n\n{table(rows)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
