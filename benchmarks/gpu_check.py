"""What only a GPU can prove: that the kernels are right on it, how fast they are, that batches do not change bits.

    benchmarks/gpu_check.sh --output results/h200

Runs the kernels' tests on the device against the float64 reference, measures the table of ``benchmarks.gpu_cases``
beside the GPU's own copy bandwidth and matrix rate, compares bits of the deterministic mode, in attention and in whole
models (``benchmarks.gpu_bits``), lets an engine's runner decode with a whole model (``benchmarks.gpu_model``), and
writes one JSON and one Markdown file after each of these parts. Ends with status 1 where something is wrong, and 2
where there is no GPU. A part that fails is written down, and those after it go on; a missed target is no error.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks import gpu_bits, gpu_model
from benchmarks.gpu_cases import BLOCK_SIZE, Bench, Sizes, make_pages, row_parts
from benchmarks.gpu_report import FileResult, GpuReport, model_lines, row_line
from benchmarks.gpu_timing import copy_bandwidth, graph_seconds, matrix_rate
from engine.memory_budget import CudaMemory
from kernels.attention import AttentionMetadata
from kernels.gpu.backend import TritonBackend
from kernels.roofline import sheet_of

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests" / "kernels" / "gpu"
OTHERS = {"test_interpreter.py"}  # proves what needs no GPU
LONGEST = "test_kinds.py"
TEST_SECONDS = 270  # of all tests together, so that the measurements have the rest of ten minutes


def run_tests(targets: Sequence[str], processes: int, seconds: float = TEST_SECONDS) -> list[FileResult]:
    """Each target in a pytest of its own, several at a time: compiling is what takes long. All within ``seconds``."""
    deadline = time.monotonic() + seconds
    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(partial(_run_target, deadline=deadline), targets))


def _run_target(target: str, deadline: float) -> FileResult:
    # without the project's own settings, which name plugins that need not be here
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, f"--rootdir={ROOT}", "--import-mode=importlib"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT)
    name = target.rpartition("/")[2]
    try:
        finished = subprocess.run(
            [*command, "-p", "no:cacheprovider", target],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=max(1.0, deadline - time.monotonic()),
        )
    except subprocess.TimeoutExpired:
        return FileResult(file=name, passed=False, summary="not finished in the time that all tests have")
    said = finished.stdout.strip() or finished.stderr.strip() or "no output"
    lines, passed = said.splitlines(), finished.returncode == 0
    failures = tuple(line for line in lines if line.startswith(("FAILED ", "ERROR ")))
    return FileResult(file=name, passed=passed, summary=lines[-1], failures=failures, output="" if passed else said)


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


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("gpu_check"), help="path of both files, without suffix")
    parser.add_argument("--skip-tests", action="store_true", help="only measure")
    parser.add_argument("--processes", type=int, default=max(1, min(12, (os.cpu_count() or 2) * 3 // 4)))
    arguments = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("No GPU that torch can use: there is nothing to check here. See docs/kernels.md.", file=sys.stderr)
        return 2
    device = torch.device("cuda")
    name = torch.cuda.get_device_name(device)
    report = GpuReport(
        path=arguments.output,
        device={"device": name, "torch": torch.__version__, "triton": version("triton")},
    )
    if not arguments.skip_tests:
        with report.part("tests"):
            report.tests += run_tests(test_targets(), arguments.processes)
            print(
                f"tests: {sum(one.passed for one in report.tests)} of {len(report.tests)} files and parts of them pass",
                flush=True,
            )
            for line in (line for one in report.tests for line in one.failures or [one.summary] * (not one.passed)):
                print(line, flush=True)
    sizes = full_sizes(torch.cuda.mem_get_info(device)[0])
    with report.part("bits"):
        report.bits |= invariance(sizes, device)
        for dtype in (torch.bfloat16, torch.float32):
            report.bits |= gpu_bits.bits_of_models(device, gpu_bits.full_spec(), dtype)
    with report.part("answers"):
        report.answers |= gpu_model.answers(device)
    measure(report, sizes, device, name)
    print(f"wrote {arguments.output}.json and {arguments.output}.md")
    return 0 if report.is_right else 1


def test_targets() -> list[str]:
    """The files of the kernels' tests; first, one by one, the tests of the one that has most to compile."""
    longest = TESTS / LONGEST
    names = re.findall(r"^def (test_\w+)", longest.read_text(encoding="utf-8"), re.MULTILINE)
    files = [file for file in sorted(TESTS.glob("test_*.py")) if file.name not in (LONGEST, *OTHERS)]
    return [*(f"{longest}::{name}" for name in names), *map(str, files)]


def measure(report: GpuReport, sizes: Sizes, device: torch.device, name: str) -> None:
    """Of the GPU called ``name``: bandwidth and matrix rate, and beside them all kernels and a whole model."""
    bandwidth = matrix = 0.0
    with report.part("bandwidth and matrix rate"):
        bandwidth = copy_bandwidth(graph_seconds, device, 2**30)
        matrix = matrix_rate(graph_seconds, device, 8192)
    if not bandwidth or not matrix:
        return  # nothing to hold anything against
    sheet = sheet_of(name)
    report.device |= {
        "copy bandwidth, GB/s": round(bandwidth / 1e9),
        "data sheet bandwidth, GB/s": None if sheet is None else round(sheet.bandwidth / 1e9),
        "bf16 product, TFLOP/s": round(matrix / 1e12),
    }
    for part, rows in row_parts(Bench(graph_seconds, device, sizes, bandwidth, matrix)):
        with report.part(part):
            for row in rows:
                print(row_line(row), flush=True)
                report.rows.append(row)
    with report.part("a whole model"):
        memory = CudaMemory(device)
        free_bytes = memory.total() - memory.in_use()
        report.model = gpu_model.measure(gpu_model.full_sizes(free_bytes, device), bandwidth, memory)
        print("\n".join(model_lines(report.model)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
