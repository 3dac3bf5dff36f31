"""What a step's sampling costs on a CPU: milliseconds for batches of logits, by the native kernel and by torch.

    python -m benchmarks.sampler
    python -m benchmarks.sampler --spread 1 --batches 32 --repeats 21

Rows of normally distributed logits; every row of a batch has the same parameters and a draw of its own. *sort* is what
a few lines of torch do: softmax, sort, cumulative sum, draw, for the whole batch at once; *rule in torch* is the
engine's own sampler where the native library is missing. All are timed in turn, repeat by repeat, so that other work
on the machine meets them alike; medians, and the least of all repeats in brackets.

A second table has what it costs to edit the logits before that: *tell* is the host's work for each sequence, its last
token counted and its next edit made; *apply* is what the runner does with them. A third one has what log probabilities
cost: the engine's own, which are native where the library is there, and a few lines of torch for the whole batch.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from benchmarks.machine import Conditions
from engine.block_tables import Array
from engine.edited_logits import EditedLogits
from engine.logit_edits import LogitEditor, TokenConstraint
from engine.logprobs import LogprobTable
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
class EditCase:
    """Sequences whose prompts and outputs have so many tokens, drawn at random."""

    params: SamplingParams
    prompt: int = 1000
    output: int = 500
    is_masked: bool = False


PENALTIES = SamplingParams(max_tokens=1, frequency_penalty=0.5, presence_penalty=0.5)
ALL_PENALTIES = SamplingParams(
    max_tokens=1, repetition_penalty=1.1, frequency_penalty=0.5, logit_bias=dict.fromkeys(range(250), 1.0)
)
EDITS = {
    "two penalties, 500 tokens of output": EditCase(PENALTIES),
    "all penalties, 1,000 of prompt, 250 biases": EditCase(ALL_PENALTIES),
    "all penalties, 8,000 of prompt, 250 biases": EditCase(ALL_PENALTIES, prompt=8000),
    "a grammar's mask": EditCase(SamplingParams(max_tokens=1), is_masked=True),
}


NUMS_TOP = (0, 5, 20)  # most likely tokens that are told beside each


class HalfAllowed:
    """A constraint that allows every other token, for ever."""

    is_over = False

    def __init__(self, vocab_size: int) -> None:
        self._words = np.full(-(-vocab_size // 32), 0x55555555, dtype=np.int32)

    def allowed(self) -> Array:
        return self._words

    def accept(self, token_id: int) -> None:
        """Nothing depends on it."""

    def may_end(self) -> bool:
        return False


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
    return timed(contenders, repeats)


def log_softmax_and_topk(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> tuple[torch.Tensor, ...]:
    """Values of the tokens and of the most likely ones, the ids of these, and ranks, in a few batched operations."""
    values = logits.log_softmax(dim=1)
    own = values.gather(1, token_ids[:, None])
    top = values.topk(num_top, dim=1)
    return own, top.values, top.indices, (values > own).sum(dim=1) + 1


def measure_logprobs(logits: torch.Tensor, num_top: int, repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each repeat, by name, of tokens that a temperature of 1 may draw."""
    draws = [uniform_draw(2, index) for index in range(len(logits))]
    drawn = Sampler.best().sample(logits, [SamplingParams(max_tokens=1)] * len(logits), draws)
    token_ids = torch.tensor(drawn)
    return timed(
        {
            "engine": partial(LogprobTable.of, logits, token_ids, num_top),
            "torch": partial(log_softmax_and_topk, logits, token_ids, num_top),
        },
        repeats,
    )


def timed(contenders: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each repeat, by name, in turn."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(-1, repeats):  # the first warms up
        for name, contender in contenders.items():
            started = time.perf_counter()
            contender()
            if repeat >= 0:
                found[name].append(1e3 * (time.perf_counter() - started))
    return found


def measure_edits(logits: torch.Tensor, case: EditCase, repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each repeat, by part; the logits change."""
    vocab_size, source = logits.shape[1], random.Random(0)
    constraint: TokenConstraint | None = HalfAllowed(vocab_size) if case.is_masked else None
    editors = []
    for _ in logits:
        prompt = [source.randrange(vocab_size) for _ in range(case.prompt)]
        editors.append(LogitEditor(case.params, prompt, (), vocab_size, constraint))
        for _ in range(case.output):
            editors[-1].accept(source.randrange(vocab_size))
    found: dict[str, list[float]] = {"tell": [], "apply": []}
    for repeat in range(-1, repeats):  # the first warms up
        tokens = [source.randrange(vocab_size) for _ in editors]
        started = time.perf_counter()
        for editor, token_id in zip(editors, tokens, strict=True):
            editor.accept(token_id)
        told = [(row, editor.edit(case.output + 1)) for row, editor in enumerate(editors)]
        middle = time.perf_counter()
        edits = {row: edit for row, edit in told if edit is not None}
        EditedLogits.of(edits, vocab_size, lambda size: torch.empty(size, dtype=torch.int64)).apply(logits)
        if repeat >= 0:
            found["tell"].append(1e3 * (middle - started))
            found["apply"].append(1e3 * (time.perf_counter() - middle))
    return found


def plain_table(title: str, rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [
        f"| {title} | batch | {' | '.join(rows[0].milliseconds)} |",
        "|---" * (2 + len(rows[0].milliseconds)) + "|",
    ]
    for row in rows:
        cells = [f"{statistics.median(times):.2f} ({min(times):.2f})" for times in row.milliseconds.values()]
        lines.append(f"| {row.case} | {row.batch} | {' | '.join(cells)} |")
    return "\n".join(lines)


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
    edited = [
        Row(name, batch, measure_edits(logits[:batch].clone(), edits, arguments.repeats))
        for name, edits in EDITS.items()
        for batch in batches
    ]
    told = [
        Row(str(num_top), batch, measure_logprobs(logits[:batch], num_top, arguments.repeats))
        for num_top in NUMS_TOP
        for batch in batches
    ]
    print(
        f"\nms, median (least) of {arguments.repeats}; {arguments.threads} threads; {arguments.vocab_size:,} tokens, "
        f"normal with a standard deviation of {arguments.spread:g}; temperature {TEMPERATURE:g}\n\n{table(rows)}\n\n"
        f"{plain_table('edits', edited)}\n\n{plain_table('most likely tokens told', told)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
