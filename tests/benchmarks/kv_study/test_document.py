"""The document: what is written between its markers, beside it, and what stays as it was."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from benchmarks.kv_study.document import FRAME, render, sections, write_document
from benchmarks.kv_study.markdown import ratio, size, table, time
from benchmarks.kv_study.plot_style import style
from benchmarks.kv_study.plots import FIGURES, draw_plots
from benchmarks.kv_study.study import Study


def test_figures_have_units_and_three_digits() -> None:
    assert [time(one) for one in (123.4, 1.234, 0.0123, 5e-6, 7.5e-8)] == [
        "123 s",
        "1.23 s",
        "12.3 ms",
        "5.00 us",
        "75.0 ns",
    ]
    assert [size(one) for one in (999, 18_432, 3.5e6, 2e9)] == ["999 B", "18.4 kB", "3.50 MB", "2.00 GB"]
    assert ratio(12.345) == "12.3x"


def test_numbers_are_set_to_the_right() -> None:
    assert table(["a", "b"], [["x", "1"]]) == "| a | b |\n|---|---:|\n| x | 1 |"


def test_it_opens_with_a_summary_and_answers_every_question(study: Study) -> None:
    text = render(study)
    assert text.startswith("## In short\n\n|  | question | answer |")
    parts = sections(study)
    assert [one.title[:3] for one in parts] == ["(a)", "(b)", "(c)", "(d)", "(e)", "(f)"]
    for part in parts:
        assert f"| {part.question} | {part.answer} |" in text
        assert f"](images/kv-study-{part.plot}.svg)" in text
    assert text.count("**What it means.**") == text.count("**Limits.**") == text.count("**How it was measured.**") == 6
    assert {part.plot for part in parts} == set(FIGURES)
    assert "A tiny run: too short for conclusions." in text


def test_every_table_has_as_many_cells_in_each_row(study: Study) -> None:
    for block in render(study).split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.splitlines()}) == 1, block


def test_plots_are_small_svg_files_on_white(study: Study) -> None:
    plots = draw_plots(study)
    assert set(plots) == {f"kv-study-{name}.svg" for name in FIGURES}
    for content in plots.values():
        assert b"<svg" in content
        assert b"fill: #ffffff" in content
        assert len(content) < 150_000


def test_a_model_whose_layers_all_see_everything_has_nothing_to_limit(study: Study) -> None:
    quality = dataclasses.replace(study.quality, limited=study.quality.limited[:1], full_layers=0)
    timing = dataclasses.replace(study.timing, generations=study.timing.generations[:1])
    setting = dataclasses.replace(study.setting, windows=(None, None))
    alone = dataclasses.replace(study, quality=quality, timing=timing, setting=setting)
    text = render(alone)
    assert "nothing to limit" in text
    assert "Every layer of this model sees the whole text" in text
    with style():
        assert len(FIGURES["quality"](alone).axes) == 1


def test_results_are_json(study: Study) -> None:
    found = json.loads(study.to_json())
    assert set(found) == {"setting", "timing", "memory", "quality", "upkeep", "leftovers"}
    assert len(found["timing"]["generations"][0]["seconds"]) == 320


def test_a_second_run_replaces_only_what_is_between_the_markers_of_the_first(
    tmp_path: Path,
) -> None:
    path = tmp_path / "docs" / "study.md"
    write_document(path, "first", {"kv-study-time.svg": b"one"})
    head, tail = re.split(r"<!-- kv study: begin -->\n.*?<!-- kv study: end -->", path.read_text(), flags=re.DOTALL)
    assert FRAME.startswith(head)
    assert FRAME.endswith(tail)
    path.write_text(path.read_text().replace("## Sources", "Mine.\n\n## Sources"))
    write_document(path, "second", {"kv-study-time.svg": b"two"})

    text = path.read_text()
    assert "first" not in text
    assert "second" in text
    assert "Mine." in text
    assert sorted(one.name for one in tmp_path.rglob("*") if one.is_file()) == ["kv-study-time.svg", "study.md"]
    assert (path.parent / "images" / "kv-study-time.svg").read_bytes() == b"two"


def test_a_document_without_markers_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "study.md"
    path.write_text("mine alone")
    with pytest.raises(ValueError, match="lacks the lines"):
        write_document(path, "text", {})
    assert path.read_text() == "mine alone"
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["study.md"]
