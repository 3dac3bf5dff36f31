"""``octavo study`` from its arguments to its files."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kv_study import study as study_module
from benchmarks.kv_study.__main__ import main
from benchmarks.kv_study.document import FRAME

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_a_quick_study_writes_document_plots_and_results(
    tiny_gemma3_dir: Path, text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, results = tmp_path / "study.md", tmp_path / "study.json"
    arguments = [str(tiny_gemma3_dir), "--quick", "--text", str(text_file)]
    assert main([*arguments, "--write", str(path), "--json", str(results)]) == 0

    assert capsys.readouterr().out.startswith("## In short\n\n|  | question | answer |")
    assert "A quick run" in path.read_text()
    assert len(list((tmp_path / "images").glob("kv-study-*.svg"))) == 6
    assert json.loads(results.read_text())["setting"]["sizes"]["name"] == "quick"


def test_an_interrupted_study_leaves_the_document_alone(
    tiny_gemma3_dir: Path,
    text_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "study.md"
    path.write_text(FRAME)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study_module, "measure_timing", interrupted)
    arguments = [str(tiny_gemma3_dir), "--quick", "--text", str(text_file), "--write", str(path)]
    assert main(arguments) == 130
    assert capsys.readouterr().err.splitlines()[-1] == f"octavo study: interrupted; {path} is as it was"
    assert path.read_text() == FRAME
    assert [one.name for one in tmp_path.iterdir()] == ["study.md"]


def without(name: str) -> Callable[..., Any]:
    real = builtins.__import__

    def find(module: str, *rest: Any, **others: Any) -> Any:
        if module.partition(".")[0] == name:
            raise ImportError(f"No module named {name!r}")
        return real(module, *rest, **others)

    return find


def test_without_matplotlib_it_says_so_before_it_measures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(builtins, "__import__", without("matplotlib"))
    assert main([]) == 1
    assert capsys.readouterr().err == "octavo study: the plots need matplotlib: pip install 'octavo[study]'\n"


def test_a_document_without_markers_is_refused_before_anything_is_measured(
    tiny_gemma3_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.md"
    path.write_text("mine alone")
    monkeypatch.delattr(study_module, "measure_timing")
    assert main([str(tiny_gemma3_dir), "--write", str(path)]) == 1
    assert f"{path} lacks the line <!-- kv study: begin -->" in capsys.readouterr().err
    assert path.read_text() == "mine alone"


def test_a_model_that_is_not_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere"), "--quick"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("octavo study: ")


def test_octavo_study_is_this_command() -> None:
    code = "import sys; from server.cli import main; sys.exit(main())"
    finished = subprocess.run(
        [sys.executable, "-c", code, "study", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert finished.stdout.startswith("usage: octavo study")
