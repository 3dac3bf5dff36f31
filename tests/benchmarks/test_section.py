"""A command writes its part of a document and nothing else of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.section import write_section


def test_only_what_is_between_the_markers_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    other = "<!-- other: begin -->\nkept\n<!-- other: end -->\n"
    page.write_text(f"before\n<!-- one: begin -->\nold\n<!-- one: end -->\nafter\n{other}")
    write_section(page, "one", "new")
    assert page.read_text() == f"before\n<!-- one: begin -->\n\nnew\n\n<!-- one: end -->\nafter\n{other}"
    with pytest.raises(ValueError, match="lacks the lines <!-- two: begin --> and <!-- two: end -->"):
        write_section(page, "two", "new")
