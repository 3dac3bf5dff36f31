"""What a GPU check writes down, also where something fails or time is up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import gpu_check
from benchmarks.gpu_report import GpuReport


@pytest.fixture
def report(tmp_path: Path) -> GpuReport:
    return GpuReport(path=tmp_path / "new" / "report", device={"device": "some GPU"})


def written(report: GpuReport) -> tuple[dict[str, object], str]:
    return json.loads(Path(f"{report.path}.json").read_text()), Path(f"{report.path}.md").read_text()


def test_a_part_that_fails_is_written_down_with_what_it_had_found_and_the_next_one_goes_on(report: GpuReport) -> None:
    with report.part("bits"):
        report.bits["a decode"] = True
        raise RuntimeError("illegal memory access\nand more lines")
    known, text = written(report)
    assert known["failures"] == ["bits: RuntimeError: illegal memory access"]
    assert "- FAILED: bits: RuntimeError: illegal memory access" in text
    assert "| a decode | equal |" in text
    with report.part("answers"):
        report.answers["tokens"] = True
    known, _ = written(report)
    assert (known["bits"], known["answers"], list(known["parts"])) == (
        {"a decode": True},
        {"tokens": True},
        ["bits", "answers"],
    )
    assert not report.is_right


def test_a_run_that_is_cut_off_leaves_what_it_has_found(report: GpuReport) -> None:
    report.bits["a decode"] = True
    with pytest.raises(KeyboardInterrupt), report.part("rest"):
        raise KeyboardInterrupt
    assert written(report)[0]["bits"] == {"a decode": True}


def test_the_report_names_the_tests_that_failed_and_keeps_what_they_said(report: GpuReport, tmp_path: Path) -> None:
    good, bad = tmp_path / "test_good.py", tmp_path / "test_bad.py"
    good.write_text("def test_one(): pass\n")
    bad.write_text("def test_one(): pass\ndef test_two(): assert 1 == 2, 'out of tolerance'\n")
    with report.part("tests"):
        report.tests += gpu_check.run_tests([str(good), str(bad)], 2)
    assert [one.passed for one in report.tests] == [True, False]
    known, text = written(report)
    assert "| test_good.py | pass | 1 passed in " in text
    (line,) = [line for line in text.splitlines() if line.startswith("- FAILED ")]
    assert line.endswith("::test_two - AssertionError: out of tolerance")
    assert "def test_two" in known["tests"][1]["output"]
    assert known["tests"][0]["output"] == ""
    assert not report.is_right


def test_tests_that_have_no_time_left_fail_and_say_so(tmp_path: Path) -> None:
    slow = tmp_path / "test_slow.py"
    slow.write_text("import threading\ndef test_one(): threading.Event().wait(60)\n")
    (result,) = gpu_check.run_tests([str(slow)], 1, seconds=0.0)
    assert (result.passed, result.summary) == (False, "not finished in the time that all tests have")


def test_every_test_of_a_kernel_runs_and_the_longest_file_in_parts() -> None:
    targets = [target.rpartition("/")[2] for target in gpu_check.test_targets()]
    parts = [target for target in targets if target.startswith("test_kinds.py::test_")]
    assert targets[: len(parts)] == parts
    assert len(parts) == 4
    files = {file.name for file in Path(__file__).parent.glob("test_*.py")}
    assert {target.partition("::")[0] for target in targets} == files - {"test_interpreter.py"}
