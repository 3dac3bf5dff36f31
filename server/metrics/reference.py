"""The reference part of docs/metrics.md, written from the catalogue.

    python -m server.metrics.reference --write docs/metrics.md

Knows the catalogue and vLLM's names; what stands above the heading of the reference is written by hand and left as it
is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from server.metrics.catalogue import CATALOGUE, SECTIONS
from server.metrics.metric_spec import MetricKind, MetricSpec
from server.metrics.vllm_names import VLLM_NAMES, VllmName

HEADING = "## Reference\n"


def reference() -> str:
    """All tables, in Markdown."""
    starts = [CATALOGUE.index(first) for _, first in SECTIONS]
    parts = [HEADING, "_Written by `python -m server.metrics.reference --write docs/metrics.md`._\n"]
    for (question, _), (start, end) in zip(SECTIONS, pairwise([*starts, len(CATALOGUE)]), strict=True):
        parts += [f"### {question}\n", _table(("metric", "kind", "labels", ""), map(_row, CATALOGUE[start:end]))]
    parts += ["### vLLM's names\n", _table(("metric", "kind", "the numbers of", "labels"), map(_vllm_row, VLLM_NAMES))]
    return "\n".join(parts)


def write(path: Path) -> None:
    """Replace the reference at the end of a page. ValueError where it has none."""
    prose, found, _ = path.read_text(encoding="utf-8").partition(HEADING)
    if not found:
        raise ValueError(f"{path} lacks the heading {HEADING.strip()}")
    path.write_text(prose + reference(), encoding="utf-8")


def _table(heads: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _row(spec: MetricSpec) -> tuple[str, str, str, str]:
    name = spec.series[0] if spec.kind is MetricKind.COUNTER else spec.name
    labels = "; ".join(
        f"`{label}`" + (f" = {', '.join(values)}" if values else "")
        for label, values in zip(spec.labels, spec.label_values or ((),) * len(spec.labels), strict=True)
    )
    return f"`{name}`", spec.kind.value, labels, spec.help


def _vllm_row(entry: VllmName) -> tuple[str, str, str, str]:
    source = "none; always 0" if entry.source is None else f"`{_row(entry.source)[0].strip('`')}`"
    return f"`{entry.series}`", entry.kind.value, source, "; ".join(_vllm_labels(entry))


def _vllm_labels(entry: VllmName) -> Iterator[str]:
    """Labels beside those of every series."""
    names = dict.fromkeys([*entry.labels.values(), *(name for labels in entry.nothing for name in labels)])
    for name in names:
        values = dict.fromkeys(entry.values.values())
        nothing = [labels[name] for labels in entry.nothing if entry.source is not None and name in labels]
        listed = [*values, *(f"{value} (always 0)" for value in nothing)]
        yield f"`{name}`" + (f" = {', '.join(listed)}" if listed else "")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m server.metrics.reference", description=reference.__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace the reference at the end of FILE")
    path: Path | None = parser.parse_args(arguments).write
    if path is None:
        print(reference(), end="")
    else:
        write(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
