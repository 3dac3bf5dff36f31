"""The launches that a GPU is measured with, at sizes that the interpreter can run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check
from benchmarks.gpu_cases import Bench, Row, Sizes, decode_rows, row_parts, sharing_rows
from benchmarks.gpu_model import ModelReport
from benchmarks.gpu_report import FileResult, GpuReport
from benchmarks.gpu_timing import MOST_COPIES, PAST_CACHES, copies_past_caches

pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")

SIZES = Sizes(
    batches=(1, 2),
    contexts=(20, 40),
    prompts=(24,),
    sharing=(3, 32, 5),
    num_tokens=20,
    hidden=128,
    vocab_size=300,
    rows=2,
    heads=(4, 2),
    head_dim=64,
    pool_bytes=2**20,
)


def first_launch(launches: Sequence[Callable[[], object]]) -> float:
    """A clock by which everything takes a millisecond; runs what it is given once."""
    launches[0]()
    return 1e-3


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    bench = Bench(first_launch, torch.device("cuda" if torch.cuda.is_available() else "cpu"), SIZES, 1e9, 1e12)
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            patch.setenv("TRITON_INTERPRET", "1")
        return [row for _, part in row_parts(bench) for row in part]


def test_every_kernel_has_its_rows(rows: list[Row]) -> None:
    kernels = [row.kernel for row in rows]
    assert {name: kernels.count(name) for name in kernels if name != "decode"} == {
        "cascade": 1,
        "cascade, saved": 1,
        "prefill": 2,
        "torch SDPA": 1,
        "store_kv": 2,
        "add_rms_norm": 1,
        "rotary": 1,
        "swiglu": 1,
        "sample": 5,
        "int8_gemm": 1,
        "int4_gemm": 1,
        "dense_gemm": 6,
        "grouped_gemm": 1,
    }
    assert kernels.count("decode") in (9, 13)  # four for each kind of pages that the device has, and one that shares


def test_rates_are_costs_over_time_and_shares_of_what_was_measured(rows: list[Row]) -> None:
    decode = next(row for row in rows if row.setting == "batch 2, context 40, bfloat16 pages")
    num_bytes = 2 * 2 * 4 * 64 * 2 + 2 * 40 * 2 * 2 * 64 * 2
    assert decode.microseconds == 1000.0
    assert decode.rate == pytest.approx(num_bytes / 1e6)
    assert decode.share == pytest.approx(num_bytes / 1e6)
    assert (decode.unit, decode.reference, decode.target) == ("GB/s", "copy", 0.85)
    prefill = [row for row in rows if row.kernel == "prefill"]
    assert [(row.reference, row.share, row.target) for row in prefill] == [
        ("torch SDPA", 1.0, 0.75),
        ("bf16 product", pytest.approx(4 * 4 * 64 * 300 / 1e-3 / 1e12), None),
    ]


def test_sharing_is_measured_beside_plain_decode_over_the_same_pages(device: torch.device) -> None:
    times = iter((3e-3, 1e-3, 1e-3, 1e-3))

    def clock(launches: Sequence[Callable[[], object]]) -> float:
        launches[0]()
        return next(times)

    bench = Bench(clock, device, SIZES, 1e9, 1e12)
    plain, shared, saved = sharing_rows(bench)
    rows, stored = 3 * 2 * 4 * 64 * 2, 2 * 2 * 64 * 2
    assert (plain.kernel, plain.setting) == ("decode", "batch 3, 32 shared, 5 own")
    assert plain.rate == pytest.approx((rows + 3 * 37 * stored) / 3e6)
    assert (shared.kernel, shared.rate) == ("cascade", pytest.approx((rows + (32 + 15) * stored) / 1e6))
    assert (saved.microseconds, saved.rate) == (pytest.approx(2000), pytest.approx(64 * stored / 2e6))
    assert list(sharing_rows(bench))[-1].note == "nothing: it takes longer"


def test_a_short_context_of_one_sequence_has_the_lower_target(rows: list[Row]) -> None:
    targets = [row.target for row in rows if row.kernel == "decode" and "bfloat16" in row.setting]
    assert targets == [0.70, 0.85, 0.70, 0.85]


def test_a_case_without_room_says_so(device: torch.device) -> None:
    bench = Bench(first_launch, device, SIZES, 1e9, 1e12)
    small = Bench(first_launch, device, Sizes(**{**asdict(SIZES), "pool_bytes": 3 * 16 * 512}), 1e9, 1e12)
    assert all(row.note == "" for row in decode_rows(bench, torch.bfloat16))
    notes = [row.note for row in decode_rows(small, torch.bfloat16)]
    assert notes == ["", "needs 0 GiB of pages", "", "needs 0 GiB of pages"]


def test_the_report_names_targets_that_were_missed_and_what_is_wrong(rows: list[Row], tmp_path: Path) -> None:
    report = GpuReport(
        path=tmp_path / "report",
        device={"device": "some GPU"},
        tests=[FileResult(file="test_decode.py", passed=True, summary="9 passed")],
        bits={"a decode": True, "a prompt": False},
        rows=rows,
        answers={"tokens": False},
        model=ModelReport(shape="2 layers of 64, float32"),
    )
    text = report.markdown()
    assert "| test_decode.py | pass | 9 passed |" in text
    assert "| a prompt | DIFFERENT |" in text
    assert "| prefill | 24 tokens | 1,000.0 | 0 TFLOP/s | 100% of torch SDPA | 75% |" in text
    assert "| 85% missed |" in text
    assert "| tokens | DIFFERENT |" in text
    assert "Llama 8B's shape, 2 layers of 64, float32, random weights" in text
    assert json.loads(json.dumps([asdict(row) for row in rows]))[0]["kernel"] == "decode"


def test_bits_are_compared_in_deterministic_mode(device: torch.device) -> None:
    bits = gpu_check.invariance(SIZES, device)
    assert bits == dict.fromkeys(bits, True)
    assert len(bits) == 3


@pytest.mark.parametrize(("num_bytes", "copies"), [(0, MOST_COPIES), (PAST_CACHES // 3, 4), (PAST_CACHES + 1, 1)])
def test_small_launches_get_enough_copies_to_outgrow_the_caches(num_bytes: int, copies: int) -> None:
    assert copies_past_caches(num_bytes) == copies


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_script_says_so_and_measures_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    assert gpu_check.main(["--output", f"{tmp_path}/report"]) == 2
    assert "No GPU that torch can use" in capsys.readouterr().err
