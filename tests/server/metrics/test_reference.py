"""docs/metrics.md is what the catalogue says, and names nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from server.metrics.catalogue import CATALOGUE, SECTIONS
from server.metrics.reference import HEADING, main, reference, write
from server.metrics.vllm_names import VLLM_NAMES

PAGE = Path(__file__).parents[3] / "docs/metrics.md"
SERIES = {name for spec in CATALOGUE for name in spec.series}
NAMES = {spec.name for spec in CATALOGUE}


def test_the_reference_in_the_documentation_is_current() -> None:
    prose, _, tables = PAGE.read_text().partition(HEADING)
    assert HEADING + tables == reference(), "run python -m server.metrics.reference --write docs/metrics.md"
    assert prose.startswith("# Metrics\n")


def test_i01_the_documentation_names_every_metric_and_no_other() -> None:
    prose, _, tables = PAGE.read_text().partition(HEADING)
    word = r"`((?:octavo|process)_\w+)`"
    assert {name.removesuffix("_total") for name in re.findall(r"^\| " + word, tables, re.MULTILINE)} == NAMES
    assert set(re.findall(r"\b(?:octavo|process)_\w+\w", prose)) <= SERIES | NAMES | {"octavo_engine_process_"}
    assert set(re.findall(r"`(vllm:\w+)`", tables)) == {entry.series for entry in VLLM_NAMES}


def test_the_questions_follow_the_catalogue() -> None:
    firsts = [CATALOGUE.index(first) for _, first in SECTIONS]
    assert firsts[0] == 0
    assert firsts == sorted(set(firsts))


def test_writing_replaces_the_reference_and_leaves_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"By hand.\n\n{HEADING}\nold\n")
    assert main(["--write", str(page)]) == 0
    assert page.read_text() == f"By hand.\n\n{reference()}"


def test_a_page_without_the_heading_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("By hand.\n")
    with pytest.raises(ValueError, match="## Reference"):
        write(page)
    assert page.read_text() == "By hand.\n"


def test_without_a_file_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out == reference()
