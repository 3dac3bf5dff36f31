"""``python -m benchmarks.kv_study``, which is ``octavo study``: what KV caching is for, measured and written down.

Statuses: 0, 1 when it could not be done (one sentence on stderr says why), 2 for wrong arguments, 130 when interrupted,
which leaves the document as it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.kv_study.plot_style import PlotsMissing, require_matplotlib

DOCUMENT = Path("docs/kv-cache-study.md")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parsed = build_parser().parse_args(arguments)
    path = parsed.write or (None if parsed.quick else DOCUMENT)
    try:
        return _run(parsed, path)
    except KeyboardInterrupt:
        left = "" if path is None else f"; {path} is as it was"
        print(f"octavo study: interrupted{left}", file=sys.stderr)
        return 130


def _run(parsed: argparse.Namespace, path: Path | None) -> int:
    try:
        if path is not None:
            require_matplotlib()
    except PlotsMissing as error:
        return _failed(error)

    # what takes seconds to import, after the check that takes none
    from benchmarks.kv_study.document import render, require_markers, write_document
    from benchmarks.kv_study.plots import draw_plots
    from benchmarks.kv_study.sizes import FULL, QUICK
    from benchmarks.kv_study.studied_model import StudiedModel
    from benchmarks.kv_study.study import run_study
    from engine.config import CheckpointError, ConfigError
    from server.text.errors import TextError

    try:
        if path is not None:
            require_markers(path)
        studied = StudiedModel(parsed.model, parsed.text)
        study = run_study(studied, QUICK if parsed.quick else FULL)
        if parsed.json is not None:
            parsed.json.write_text(study.to_json(), encoding="utf-8")
        text = render(study)
        print(text)
        if path is not None:
            write_document(path, text, draw_plots(study))
            print(f"octavo study: {path} and its plots are written", file=sys.stderr)
    except (CheckpointError, ConfigError, TextError, OSError, ValueError) as error:
        return _failed(error)
    return 0


def _failed(error: Exception) -> int:
    print(f"octavo study: {error}", file=sys.stderr)
    return 1


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="octavo study",
        description="Measure what KV caching is for, on one model and on CPUs, and write it down with plots. Takes "
        "about ten minutes on two cores; measure on a quiet machine.",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="as for octavo serve; default: the demo model")
    parser.add_argument(
        "--quick", action="store_true", help="short lengths, under a minute; only printed without --write"
    )
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help=f"document to write, between its markers if there is one, with plots in images/ beside it ({DOCUMENT})",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw results too")
    parser.add_argument("--text", type=Path, metavar="FILE", help="UTF-8 text to read, instead of Python's reference")
    return parser


if __name__ == "__main__":
    sys.exit(main())
