"""What it costs to follow a grammar: reading the vocabulary, compiling, and the mask of each token.

    python -m benchmarks.structured_output
    python -m benchmarks.structured_output --tokens 100 --write docs/benchmarks.md

Over the default model's vocabulary of 262,144 tokens. Each sequence goes on with a token drawn evenly from those that
are allowed, so that it is seldom where a model would go, and begins anew where its output is whole. Masks are counted
from the last `accept` of a step until all of them are there. All times are CPU time of the process, which other work on
the machine does not lengthen much; but *stall* is the longest pause of a thread that does nothing but sleep for a
millisecond, in the meantime: so long would steps have stood still.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import Conditions
from benchmarks.section import write_section
from engine.config import resolve_checkpoint
from engine.grammar_compiler import CompiledGrammar, GrammarCompiler
from engine.grammar_matcher import GrammarMatcher
from engine.sampling_params import Grammar, GrammarKind
from server.text_parts import load_text_parts

SECTION = "structured output"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"enum": ["Berlin", "Paris", "Rome"]}},
            "required": ["street", "city"],
        },
    },
    "required": ["name", "age", "tags", "address"],
    "additionalProperties": False,
}
MANY: dict[str, Any] = {"type": "object", "properties": {f"field_{one}": {"type": "string"} for one in range(300)}}
GRAMMARS = {
    "any JSON object": Grammar(GrammarKind.JSON_OBJECT),
    "schema of 7 fields": Grammar(GrammarKind.JSON_SCHEMA, json.dumps(PERSON)),
    "schema of 300 optional fields": Grammar(GrammarKind.JSON_SCHEMA, json.dumps(MANY)),
    "string of at most 200": Grammar(GrammarKind.JSON_SCHEMA, '{"type": "string", "maxLength": 200}'),
    "regex of an address": Grammar(GrammarKind.REGEX, r"[a-z0-9._]{1,20}@[a-z0-9]{1,20}\.(com|org|net)"),
    "choice of 1,000": Grammar(GrammarKind.CHOICE, json.dumps([f"choice number {one}" for one in range(1000)])),
    "arithmetic in Lark": Grammar(GrammarKind.LARK, 'start: sum\nsum: /[0-9]+/ | sum "+" sum | "(" sum ")"'),
}


@dataclass
class Stalls:
    """Pauses of a thread that sleeps, in seconds."""

    longest: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def watched(self) -> Any:
        watcher = threading.Thread(target=self._watch)
        watcher.start()
        try:
            yield self
        finally:
            self._over.set()
            watcher.join()

    def _watch(self) -> None:
        last = time.perf_counter()
        while not self._over.is_set():
            time.sleep(0.001)
            now = time.perf_counter()
            self.longest = max(self.longest, now - last - 0.001)
            last = now


def walk(grammar: CompiledGrammar, compiler: GrammarCompiler, rows: int, tokens: int, seed: int = 0) -> list[float]:
    """Microseconds of CPU time for the masks of each step of ``rows`` sequences."""
    rng = np.random.default_rng(seed)
    matchers = [grammar.matcher(draws_eos=False) for _ in range(rows)]
    times = []
    for _ in range(tokens):
        matchers = [_drawn(one, grammar, rng) for one in matchers]
        started = time.process_time()
        compiler.masks.begin()
        for matcher in matchers:
            matcher.allowed()
        times.append(1e6 * (time.process_time() - started))
    return times


def _drawn(matcher: GrammarMatcher, grammar: CompiledGrammar, rng: np.random.Generator) -> GrammarMatcher:
    """The matcher after one more token, or a new one where nothing follows."""
    ids = np.flatnonzero(np.unpackbits(matcher.allowed().view(np.uint8), bitorder="little"))
    if not len(ids):
        return grammar.matcher(draws_eos=False)
    matcher.accept(int(rng.choice(ids)))
    return grammar.matcher(draws_eos=False) if matcher.is_over else matcher


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.structured_output", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--tokens", type=int, default=200, help="steps of each walk")
    parser.add_argument("--rows", default="1,32", help="sequences of a step, separated by commas")
    parser.add_argument("--write", type=Path, help="a document whose section this is")
    arguments = parser.parse_args(argv)
    conditions = Conditions.now()
    batches = [int(rows) for rows in arguments.rows.split(",")]
    tokenizer = load_text_parts(resolve_checkpoint(None), None).tokenizer
    started = time.process_time()
    tokens = tokenizer.text_bytes()
    table_seconds = time.process_time() - started
    compiler = GrammarCompiler(tokenizer.vocab_size, tokenizer.eos_token_ids)
    compiler.use_tokens(tokens)
    started = time.process_time()
    with Stalls().watched() as stalls:
        compiler.compile(Grammar(GrammarKind.REGEX, "a")).result()
    vocabulary = (
        f"The token table of {len(tokens):,} tokens takes the API process {table_seconds:.2f} s, in a thread. The "
        f"engine reads it in {time.process_time() - started:.2f} s, with a stall of {stalls.longest:.2f} s, before the "
        "first grammar of a process."
    )
    heads = [f"mask, {rows} {'row' if rows == 1 else 'rows'}" for rows in batches]
    lines = [f"| grammar | compile, ms | stall, ms | {' | '.join(heads)} |", "|---" * (3 + len(heads)) + "|"]
    for name, grammar in GRAMMARS.items():
        started = time.process_time()
        with Stalls().watched() as stalls:
            compiled = compiler.compile(grammar).result()
        cells = [f"{1e3 * (time.process_time() - started):.1f}", f"{1e3 * stalls.longest:.1f}"]
        for rows in batches:
            times = walk(compiled, compiler, rows, arguments.tokens)
            cells.append(f"{statistics.median(times):,.0f} ({np.percentile(times, 99):,.0f})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    text = "\n".join(
        [
            f"{conditions}",
            "",
            vocabulary,
            "",
            f"CPU time. Masks: us a step, median (99th percentile) of {arguments.tokens} steps.",
            "",
            *lines,
        ]
    )
    print(text)
    if arguments.write is not None:
        write_section(arguments.write, SECTION, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
