"""What only a GPU can prove: that the kernels are right on it, how fast they are, that batches do not change bits.

    benchmarks/gpu_check.sh --output results/h200

Runs the kernels' tests on the device against the float64 reference, measures the table of ``benchmarks.gpu_cases``
beside the GPU's own copy bandwidth and matrix rate, compares bits of the deterministic mode, in attention and in whole
models (``benchmarks.gpu_bits``), lets an engine's runner decode with a whole model (``benchmarks.gpu_model``), and
writes one JSON and one Markdown file. Ends with status 1
where something is wrong, and 2 where there is no GPU. A missed target is written down and is no error.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks import gpu_bits, gpu_model
from benchmarks.gpu_cases import BLOCK_SIZE, Bench, Row, Sizes, all_rows, make_pages
from benchmarks.gpu_model import TARGET, ModelReport, StepRow
from benchmarks.gpu_timing import copy_bandwidth, graph_seconds, matrix_rate
from engine.memory_budget import CudaMemory
from kernels.attention import AttentionMetadata
from kernels.gpu.backend import TritonBackend
from kernels.roofline import sheet_of

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests" / "kernels" / "gpu"
OTHERS = {"test_interpreter.py"}  # proves what needs no GPU
TEST_SECONDS = 240


@dataclass(frozen=True, kw_only=True)
class FileResult:
    """The tests of one file on the device. ``summary`` is pytest's last line, or why there is none."""

    file: str
    passed: bool
    summary: str


def run_tests(files: Sequence[Path], processes: int) -> list[FileResult]:
    """Each file in a pytest of its own, several at a time: compiling is what takes long."""
    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(_run_file, files))


def _run_file(file: Path) -> FileResult:
    # without the project's own settings, which name plugins that need not be here
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, f"--rootdir={ROOT}", "--import-mode=importlib"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT)
    try:
        finished = subprocess.run(
            [*command, "-p", "no:cacheprovider", str(file)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TEST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return FileResult(file=file.name, passed=False, summary=f"not finished after {TEST_SECONDS} s")
    lines = (finished.stdout.strip() or finished.stderr.strip() or "no output").splitlines()
    return FileResult(file=file.name, passed=finished.returncode == 0, summary=lines[-1])


def full_sizes(free_bytes: int) -> Sizes:
    """What issue and documentation ask for, as far as it fits into memory."""
    return Sizes(
        batches=(1, 16, 64, 256),
        contexts=(1024, 8192, 32768),
        prompts=(2048, 8192, 32768),
        sharing=(64, 8192, 512),
        num_tokens=8192,
        hidden=4096,
        vocab_size=262_144,
        rows=256,
        heads=(64, 8),
        head_dim=128,
        pool_bytes=int(free_bytes * 0.6),
    )


def invariance(sizes: Sizes, device: torch.device) -> dict[str, bool]:
    """Whether, in deterministic mode, a sequence has the same bits alone, in a batch, and in a prompt cut in two."""
    backend = TritonBackend(is_deterministic=True)
    lengths = [300, 37, 1000, 64]
    width = -(-max(lengths) // BLOCK_SIZE)
    pages = make_pages(sizes, width * len(lengths), torch.bfloat16, device)
    table = torch.randperm(width * len(lengths), device=device).to(torch.int32).view(len(lengths), width)

    def attend(rows: torch.Tensor, query_lens: list[int], seq_lens: list[int], tables: torch.Tensor) -> torch.Tensor:
        starts = torch.tensor([0, *query_lens], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        metadata = AttentionMetadata(
            query_start_loc=starts.to(device),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=device),
            block_table=tables.contiguous(),
            slot_mapping=torch.empty(0, dtype=torch.int64, device=device),
            max_query_len=max(query_lens),
            max_seq_len=max(seq_lens),
        )
        return backend.attend(rows, pages, metadata, scale=sizes.head_dim**-0.5)

    query = torch.randn(lengths[0], sizes.heads[0], sizes.head_dim, device=device).to(torch.bfloat16)
    last = query[-1:]
    others = torch.randn(3, sizes.heads[0], sizes.head_dim, device=device).to(torch.bfloat16)
    alone = attend(last, [1], lengths[:1], table[:1])
    batch = attend(torch.cat([last, others]), [1] * 4, lengths, table)
    whole = attend(query, lengths[:1], lengths[:1], table[:1])
    halves = [attend(query[:111], [111], [111], table[:1]), attend(query[111:], [189], [300], table[:1])]
    return {
        "a decode alone and in a batch": torch.equal(alone, batch[:1]),
        "a prompt whole and in two chunks": torch.equal(whole, torch.cat(halves)),
        "the last token of a prompt and a decode": torch.equal(whole[-1:], alone),
    }


def markdown(
    report: dict[str, object],
    tests: Iterable[FileResult],
    rows: Iterable[Row],
    bits: dict[str, bool],
    answers: dict[str, bool],
    model: ModelReport,
) -> str:
    """The report for people."""
    lines = [f"# Kernels on {report['device']}", ""]
    lines += [f"- {name}: {value}" for name, value in report.items()]
    lines += ["", "## Correctness against the float64 reference", "", "| tests | | |", "|---|---|---|"]
    lines += [f"| {one.file} | {'pass' if one.passed else 'FAIL'} | {one.summary} |" for one in tests]
    lines += ["", "## Bits in deterministic mode", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {'equal' if equal else 'DIFFERENT'} |" for name, equal in bits.items()]
    lines += ["", "## Speed", "", "| kernel | setting | us | rate | share | target |", "|---|---|---:|---:|---:|---:|"]
    lines += [_line(row) for row in rows]
    lines += ["", "## A whole model", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {'equal' if equal else 'DIFFERENT'} |" for name, equal in answers.items()]
    lines += ["", *_model_lines(model), ""]
    return "\n".join(lines)


def _line(row: Row) -> str:
    if row.microseconds is None or row.rate is None or row.share is None:
        return f"| {row.kernel} | {row.setting} | {row.note} | | | |"
    target = "" if row.target is None else f"{row.target:.0%}{'' if row.share >= row.target else ' missed'}"
    share = f"{row.share:.0%} of {row.reference}"
    return (
        f"| {row.kernel} | {row.setting} | {row.microseconds:,.1f} | {row.rate:,.0f} {row.unit} | {share} | {target} |"
    )


def _model_lines(model: ModelReport) -> list[str]:
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


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("gpu_check"), help="path of both files, without suffix")
    parser.add_argument("--skip-tests", action="store_true", help="only measure")
    parser.add_argument("--processes", type=int, default=max(1, min(8, (os.cpu_count() or 2) // 2)))
    arguments = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("No GPU that torch can use: there is nothing to check here. See docs/kernels.md.", file=sys.stderr)
        return 2
    started = time.monotonic()
    device = torch.device("cuda")
    files = (
        [] if arguments.skip_tests else [file for file in sorted(TESTS.glob("test_*.py")) if file.name not in OTHERS]
    )
    tests = run_tests(files, arguments.processes)
    print(f"tests: {sum(one.passed for one in tests)} of {len(tests)} files pass", flush=True)
    sizes = full_sizes(torch.cuda.mem_get_info(device)[0])
    bits = invariance(sizes, device)
    for dtype in (torch.bfloat16, torch.float32):
        bits |= gpu_bits.bits_of_models(device, gpu_bits.full_spec(), dtype)
    bandwidth = copy_bandwidth(graph_seconds, device, 2**30)
    matrix = matrix_rate(graph_seconds, device, 8192)
    rows = []
    for row in all_rows(Bench(graph_seconds, device, sizes, bandwidth, matrix)):
        print(_line(row), flush=True)
        rows.append(row)
    answers = gpu_model.answers(device)
    memory = CudaMemory(device)
    free_bytes = memory.total() - memory.in_use()
    model = gpu_model.measure(gpu_model.full_sizes(free_bytes, device), bandwidth, memory)
    print("\n".join(_model_lines(model)), flush=True)
    name = torch.cuda.get_device_name(device)
    sheet = sheet_of(name)
    report: dict[str, object] = {
        "device": name,
        "torch": torch.__version__,
        "triton": version("triton"),
        "copy bandwidth, GB/s": round(bandwidth / 1e9),
        "data sheet bandwidth, GB/s": None if sheet is None else round(sheet.bandwidth / 1e9),
        "bf16 product, TFLOP/s": round(matrix / 1e12),
        "seconds": round(time.monotonic() - started),
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    everything = report | {
        "tests": [asdict(one) for one in tests],
        "bits": bits,
        "rows": [asdict(row) for row in rows],
        "answers": answers,
        "model": asdict(model),
    }
    Path(f"{arguments.output}.json").write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    Path(f"{arguments.output}.md").write_text(markdown(report, tests, rows, bits, answers, model), encoding="utf-8")
    print(f"wrote {arguments.output}.json and {arguments.output}.md")
    is_right = all(one.passed for one in tests) and all(bits.values()) and all(answers.values())
    return 0 if is_right and not model.failures and model.keeps_to_its_share else 1


if __name__ == "__main__":
    sys.exit(main())
