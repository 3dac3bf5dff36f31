"""A part of a document that a command writes: what is between two marker lines, and nothing else of it."""

from __future__ import annotations

from pathlib import Path


def write_section(path: Path, name: str, text: str) -> None:
    """Replace what is between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``. ValueError where they are not."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found_begin, rest = path.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"{path} lacks the lines {begin} and {end}")
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
