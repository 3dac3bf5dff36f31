"""Compile every variant of every Triton kernel for GPUs that are not here, check what they cost, and write it down.

    python -m benchmarks.kernels --compile-only
    python -m benchmarks.kernels --compile-only --modules decode,reduce --chips sm_90 --variants 128:
    python -m benchmarks.kernels --compile-only --write docs/kernels.md
    python -m benchmarks.kernels --compile-only --pairs       in half of the time, each choice still for each chip

Ends with status 1 where a kernel does not compile, does not fit, spills where it must not, multiplies without matrix
instructions (with 64 rows on Hopper: its own), waits for the pages it multiplies, or loads less than 16 bytes at once;
each such complaint is a line on stderr. Triton caches what it compiled, so only changed kernels take time. What kernels
do on a GPU is measured by ``benchmarks/gpu_check.sh``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from benchmarks.chip import CHIPS, KIB, Chip
from benchmarks.compiled import WIDE_LOAD, Compiled, compile_variant, variants_by_module
from benchmarks.section import write_section
from kernels.gpu.variant import Variant

SECTION = "compiled kernels"
ATTENTION = {"decode", "prefill", "cascade"}
WGMMA_ROWS = 64  # the fewest that Hopper's own matrix instruction takes
NEVER_SPILLS = {"store_kv", "decode"}  # up to head dim 128; their registers are all the speed they have


@dataclass(frozen=True)
class Task:
    """What one process compiles."""

    module: str
    variant: str
    chip: str


@dataclass(frozen=True)
class Outcome:
    """The cost of a variant, or why there is none, and what is wrong with it."""

    task: Task
    compiled: Compiled | None
    complaints: tuple[str, ...]


def tasks(modules: Sequence[str], chips: Sequence[str], pattern: str) -> list[Task]:
    """Every variant on every chip that can run it. ValueError for a module or a chip that does not exist."""
    available = variants_by_module()
    unknown = (set(modules) - available.keys()) | (set(chips) - CHIPS.keys())
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: choose from {', '.join([*available, *CHIPS])}")
    return [
        Task(module, name, chip)
        for module in modules or available
        for name, variant in available[module].items()
        for chip in chips or CHIPS
        if re.search(pattern, f"{name}@{chip}")
        if CHIPS[chip].has_fp8 or not variant.needs_fp8
    ]


def every_pair(listed: Sequence[Task]) -> list[Task]:
    """Fewer: every variant for a chip and, in each module, every part of the variants' names for every chip."""
    by_variant: dict[tuple[str, str], list[Task]] = {}
    for task in listed:
        by_variant.setdefault((task.module, task.variant), []).append(task)
    missing = set().union(*map(_pairs, listed))
    chosen = []
    for tasks_of_variant in by_variant.values():
        chosen.append(max(tasks_of_variant, key=lambda task: len(_pairs(task) & missing)))
        missing -= _pairs(chosen[-1])
    for task in listed:
        if _pairs(task) & missing:
            chosen.append(task)
            missing -= _pairs(task)
    return chosen


def _pairs(task: Task) -> set[tuple[str, str, str]]:
    return {(task.module, part, task.chip) for part in re.split("[ :+/]", task.variant)}


@cache
def _variants() -> dict[str, dict[str, Variant]]:
    return variants_by_module()


def run(task: Task) -> Outcome:
    """Compile one variant; what the compiler raises becomes a complaint."""
    variant = _variants()[task.module][task.variant]
    chip = CHIPS[task.chip]
    try:
        compiled = compile_variant(task.module, variant, chip)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return Outcome(task, None, (f"does not compile: {type(error).__name__}: {lines[-1]}",))
    return Outcome(task, compiled, tuple(complaints(compiled, chip, variant.constexprs.get("HEAD_DIM", 0))))


def complaints(compiled: Compiled, chip: Chip, head_dim: int) -> Iterable[str]:
    """What must not be, in words."""
    if compiled.shared > chip.shared_per_program:
        yield f"{compiled.shared} bytes of shared memory, of {chip.shared_per_program}"
    elif compiled.shared > chip.smallest_shared:
        yield f"{compiled.shared} bytes of shared memory, of {chip.smallest_shared} that the smallest card has"
    if compiled.occupancy == 0.0:
        yield "does not fit into a multiprocessor"
    if compiled.spilled and compiled.module in NEVER_SPILLS and head_dim <= 128:
        yield f"spills {compiled.spilled} bytes"
    if compiled.product_rows and not compiled.matrix:
        yield "multiplies without matrix instructions"
    if compiled.product_rows >= WGMMA_ROWS and compiled.matrix == "mma" and chip.architecture == 90:
        yield f"multiplies {compiled.product_rows} rows without wgmma"
    if (
        compiled.module in ATTENTION
        and compiled.product_rows
        and chip.backend == "cuda"
        and compiled.async_bytes < WIDE_LOAD
    ):
        yield f"copies {compiled.async_bytes} bytes of pages at once while it multiplies"
    if compiled.load_bytes < WIDE_LOAD:
        yield f"loads at most {compiled.load_bytes} bytes at once"


def run_all(listed: Sequence[Task], processes: int) -> list[Outcome]:
    """All outcomes in the order of their tasks."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=processes, mp_context=context) as pool:
        return list(pool.map(run, listed))


def table(outcomes: Iterable[Outcome]) -> str:
    """Markdown: a section per module, a line per variant, a column per chip."""
    rows: dict[str, dict[str, dict[str, Compiled | None]]] = {}
    for outcome in outcomes:
        task = outcome.task
        rows.setdefault(task.module, {}).setdefault(task.variant, {})[task.chip] = outcome.compiled
    chips = [name for name in CHIPS if any(name in row for variants in rows.values() for row in variants.values())]
    lines = []
    for module, variants in rows.items():
        lines += ["", f"### {module}", "", f"| variant | {' | '.join(chips)} |", "|---" * (1 + len(chips)) + "|"]
        lines += [
            f"| {variant} | {' | '.join(_cell(row.get(chip)) for chip in chips)} |" for variant, row in variants.items()
        ]
    return "\n".join(lines[1:])


def _cell(compiled: Compiled | None) -> str:
    if compiled is None:
        return "-"
    shared = f"{compiled.shared / KIB:.1f}".removesuffix(".0")
    occupancy, matrix = f"{compiled.occupancy:.0%}", compiled.matrix or "-"
    parts = (compiled.registers, compiled.spilled, shared, occupancy, matrix, compiled.load_bytes)
    return " ".join(str(part) for part in parts)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.kernels", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--compile-only", action="store_true", help="compile and check; needs no GPU")
    parser.add_argument("--modules", default="", help="of kernels.gpu, separated by commas; all by default")
    parser.add_argument("--chips", default="", help=f"{', '.join(CHIPS)}; all by default")
    parser.add_argument("--variants", default="", metavar="REGEX", help="only those whose NAME@CHIP has a match")
    parser.add_argument(
        "--pairs",
        action="store_true",
        help="each variant for one chip only, and each part of their names for every chip",
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers of FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write one JSON object per line")
    arguments = parser.parse_args(argv)
    if not arguments.compile_only:
        parser.error("speed is measured on a GPU, by benchmarks/gpu_check.sh; here is --compile-only")
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET is set: an interpreted kernel cannot be compiled")
    modules, chips = (value.split(",") if value else [] for value in (arguments.modules, arguments.chips))
    try:
        listed = tasks(modules, chips, arguments.variants)
    except ValueError as error:
        parser.error(str(error))
    outcomes = run_all(every_pair(listed) if arguments.pairs else listed, arguments.processes)
    compiled = [outcome.compiled for outcome in outcomes if outcome.compiled]
    text = f"{len(compiled)} kernels, Triton {version('triton')}.\n\n{table(outcomes)}"
    if arguments.json:
        arguments.json.write_text("".join(json.dumps(asdict(one)) + "\n" for one in compiled), encoding="utf-8")
    if arguments.write:
        write_section(arguments.write, SECTION, text)
    else:
        print(text)
    wrong = [outcome for outcome in outcomes if outcome.complaints]
    for outcome in wrong:
        task = outcome.task
        print(f"{task.chip} {task.module} {task.variant}: {'; '.join(outcome.complaints)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
