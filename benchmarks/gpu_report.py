"""GpuReport: what a GPU check has found so far, written down after each of its parts, for people and for programs.

A part that fails leaves its sentence and what it had found until then; the parts after it go on. So a run that is cut
off, by an error or by whoever lent the machine, leaves all that it had measured. Knows no kernels.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.gpu_cases import Row
from benchmarks.gpu_model import TARGET, ModelReport, StepRow


@dataclass(frozen=True, kw_only=True)
class FileResult:
    """Tests on the device: those of a file, or one of its own. ``summary`` is pytest's last line, or why there is none.

    ``failures``: pytest's line for each test that failed; ``output``: all it said, where one did.
    """

    file: str
    passed: bool
    summary: str
    failures: tuple[str, ...] = ()
    output: str = ""


@dataclass(kw_only=True)
class GpuReport:
    """``path`` is that of both files, without suffix; ``device`` what is known of the machine, by name.

    ``bits`` and ``answers``: by name, whether they were equal. ``parts``: seconds of each part. ``failures``: parts
    that ended before their time, and why.
    """

    path: Path
    device: dict[str, object] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    tests: list[FileResult] = field(default_factory=list)
    bits: dict[str, bool] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    answers: dict[str, bool] = field(default_factory=dict)
    model: ModelReport | None = None
    failures: list[str] = field(default_factory=list)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Note how long what is done in here takes, or why it failed, and write both files."""
        started = time.monotonic()
        try:
            yield
        except Exception as error:
            first_line = str(error).strip().partition("\n")[0]
            self.failures.append(f"{name}: {type(error).__name__}: {first_line}")
            print(f"FAILED {self.failures[-1]}", flush=True)
            traceback.print_exc(file=sys.stderr)
        finally:  # also where a person or a time limit ends the run
            gc.collect()  # of tensors that a traceback held
            self.parts[name] = round(time.monotonic() - started, 1)
            self.write()

    @property
    def is_right(self) -> bool:
        """Whether nothing was wrong; a missed target is not."""
        all_equal = all(self.bits.values()) and all(self.answers.values())
        model_is_right = self.model is None or (not self.model.failures and self.model.keeps_to_its_share)
        return not self.failures and all(one.passed for one in self.tests) and all_equal and model_is_right

    def write(self) -> None:
        """Both files, anew."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        everything = self.device | {
            "parts": self.parts,
            "failures": self.failures,
            "tests": [asdict(one) for one in self.tests],
            "bits": self.bits,
            "rows": [asdict(row) for row in self.rows],
            "answers": self.answers,
            "model": None if self.model is None else asdict(self.model),
        }
        Path(f"{self.path}.json").write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
        Path(f"{self.path}.md").write_text(self.markdown(), encoding="utf-8")

    def markdown(self) -> str:
        """The report for people."""
        lines = [f"# Kernels on {self.device.get('device', 'a GPU')}", ""]
        lines += [f"- {name}: {value}" for name, value in self.device.items()]
        lines += [f"- seconds of {name}: {seconds}" for name, seconds in self.parts.items()]
        lines += [f"- FAILED: {failure}" for failure in self.failures]
        lines += ["", "## Correctness against the float64 reference", "", "| tests | | |", "|---|---|---|"]
        lines += [f"| {one.file} | {'pass' if one.passed else 'FAIL'} | {one.summary} |" for one in self.tests]
        lines += ["", *(f"- {failure}" for one in self.tests for failure in one.failures)]
        lines += ["", "## Bits in deterministic mode", "", "| | |", "|---|---|", *_verdicts(self.bits)]
        lines += [
            "",
            "## Speed",
            "",
            "| kernel | setting | us | rate | share | target |",
            "|---|---|---:|---:|---:|---:|",
        ]
        lines += map(row_line, self.rows)
        lines += ["", "## A whole model", "", "| | |", "|---|---|", *_verdicts(self.answers)]
        lines += ["", *([] if self.model is None else model_lines(self.model)), ""]
        return "\n".join(lines)


def _verdicts(equal: dict[str, bool]) -> list[str]:
    return [f"| {name} | {'equal' if is_equal else 'DIFFERENT'} |" for name, is_equal in equal.items()]


def row_line(row: Row) -> str:
    """A measurement as a line of the table."""
    if row.microseconds is None or row.rate is None or row.share is None:
        return f"| {row.kernel} | {row.setting} | {row.note} | | | |"
    target = "" if row.target is None else f"{row.target:.0%}{'' if row.share >= row.target else ' missed'}"
    share = f"{row.share:.0%} of {row.reference}"
    return (
        f"| {row.kernel} | {row.setting} | {row.microseconds:,.1f} | {row.rate:,.0f} {row.unit} | {share} | {target} |"
    )


def model_lines(model: ModelReport) -> list[str]:
    """Decode steps by the engine's runner, beside weights and pages over bandwidth."""
    lines = [f"Llama 8B's shape, {model.shape}, random weights; started in {model.start_seconds:.1f} s."]
    lines += [f"FAILED: {failure}" for failure in model.failures]
    if model.memory_share is not None:
        verdict = "" if model.keeps_to_its_share else ", MORE THAN 2 % APART"
        asked = f"{model.asked_share:.1%} asked for{verdict}"
        lines += [f"{model.num_pages} pages: {model.memory_share:.1%} of the memory taken, {asked}."]
    lines += ["", "| batch | context | graphs | ms a step | floor, ms | times the floor | target |"]
    lines += ["|---:|---:|---|---:|---:|---:|---:|", *(_step_line(row) for row in model.rows)]
    return lines


def _step_line(row: StepRow) -> str:
    begin = f"| {row.batch} | {row.context} | {'yes' if row.has_graphs else 'no'}"
    if row.milliseconds is None or row.ratio is None:
        return f"{begin} | {row.note} | {row.floor:.2f} | | |"
    target = f"{TARGET}{'' if row.ratio <= TARGET else ' missed'}" if row.has_graphs else ""
    return f"{begin} | {row.milliseconds:.2f} | {row.floor:.2f} | {row.ratio:.2f} | {target} |"
