"""`.ci/test` runs the suite in two halves, and its status tells of both."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FAKE_PYTHON = """#!/bin/sh
printf '%s\\n' "$OMP_NUM_THREADS $OMP_WAIT_POLICY $*" >>"$0.calls"
case "$*" in *"--alone only"*) exit ALONE ;; esac
exit BESIDE
"""


def run(tmp_path: Path, *arguments: str, beside: int = 0, alone: int = 0) -> tuple[int, list[str], str]:
    """Status, calls of pytest and messages, where the halves end with these statuses."""
    python = tmp_path / "python"
    python.write_text(FAKE_PYTHON.replace("ALONE", str(alone)).replace("BESIDE", str(beside)))
    python.chmod(0o755)
    finished = subprocess.run(
        ["sh", str(ROOT / ".ci" / "test"), str(python), *arguments],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    return finished.returncode, (tmp_path / "python.calls").read_text().splitlines(), finished.stderr


def test_what_is_alone_runs_last_with_all_threads_and_the_arguments_reach_both_halves(tmp_path: Path) -> None:
    status, calls, _ = run(tmp_path, "-k", "prefix or map")
    assert status == 0
    assert calls == [
        "1 passive -m pytest --alone never -n logical --maxprocesses 8 --dist worksteal -k prefix or map",
        "  -m pytest --alone only -k prefix or map",
    ]


@pytest.mark.parametrize(
    ("beside", "alone", "expected"),
    [(1, 0, 1), (0, 1, 1), (1, 1, 1), (0, 5, 0), (5, 0, 0), (1, 5, 1), (5, 1, 1), (5, 5, 5), (0, 2, 2), (1, 2, 1)],
)
def test_it_fails_where_a_half_does_but_for_one_in_which_nothing_is_selected(
    beside: int, alone: int, expected: int, tmp_path: Path
) -> None:
    status, calls, messages = run(tmp_path, beside=beside, alone=alone)
    assert (status, len(calls)) == (expected, 2)
    assert ("see the first summary" in messages) == (beside == 1 and alone != 5)


@pytest.mark.parametrize("status", [2, 3, 4, 130])
def test_an_interrupt_or_an_error_of_usage_ends_it_at_once(status: int, tmp_path: Path) -> None:
    ended, calls, _ = run(tmp_path, beside=status)
    assert (ended, len(calls)) == (status, 1)
