"""What a step must read and multiply, against sums done by hand for the demo model, and the tables made of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks import cpu_rates, step_profile
from benchmarks.cpu_rates import BFLOAT16, FLOAT32, INT8, RateMeter, Rates
from benchmarks.profiled_engine import Load, Profile
from benchmarks.step_costs import StepShape, step_costs
from benchmarks.step_profile import Form, main, profile_table, roofline_table
from benchmarks.step_recorder import Part
from kernels.roofline import Cost
from models.checkpoint import resolve_checkpoint

RATES = Rates(bandwidth=10e9, flops={INT8: 100e9, FLOAT32: 20e9})


def test_costs_of_the_demo_model(default_gguf: Path) -> None:
    spec = resolve_checkpoint(str(default_gguf)).read_spec()
    weights = {Part.QKV: 12, Part.OUTPUT: 7, Part.MLP: 49, Part.HEAD: 178}
    costs = step_costs(spec, StepShape([1, 1], [600, 100], 2), weights, page_bytes=4, table_bytes=1.0625)
    assert costs[Part.QKV] == Cost(12, 2 * 2 * 18 * 640 * (4 + 2) * 256)
    assert costs[Part.OUTPUT] == Cost(7, 2 * 2 * 18 * 1024 * 640)
    assert costs[Part.MLP] == Cost(49, 2 * 2 * 18 * 3 * 640 * 2048)
    assert costs[Part.HEAD] == Cost(178, 2 * 2 * 640 * 262144)
    assert costs[Part.EMBEDDING] == Cost(2 * 640 + 80)
    # 15 layers see 512 positions, 3 see all: a key and a value of 256 float32 each
    seen = 15 * (512 + 100) + 3 * (600 + 100)
    assert costs[Part.ATTENTION] == Cost(seen * 2 * 256 * 4, 4 * 4 * 256 * seen)


def test_of_a_prompt_the_last_layer_computes_the_token_that_is_drawn_from(default_gguf: Path) -> None:
    spec = resolve_checkpoint(str(default_gguf)).read_spec()
    costs = step_costs(spec, StepShape([300, 1], [300, 9], 2), {}, page_bytes=2, table_bytes=1)
    assert costs[Part.QKV].flops == 2 * 301 * 18 * 640 * (4 + 2) * 256
    assert costs[Part.MLP].flops == 2 * (301 * 17 + 2) * 3 * 640 * 2048
    seen = 17 * (300 * 301 // 2) + 300 + 18 * 9
    assert costs[Part.ATTENTION].flops == 4 * 4 * 256 * seen


def test_one_byte_pages_have_their_scales_counted(default_gguf: Path) -> None:
    spec = resolve_checkpoint(str(default_gguf)).read_spec()
    costs = step_costs(spec, StepShape([1], [100], 1), {}, page_bytes=1, table_bytes=1)
    assert costs[Part.ATTENTION].bytes == 18 * 100 * 2 * (256 + 4)


def test_a_floor_is_the_longer_of_reading_and_multiplying() -> None:
    assert RATES.floor_seconds(Cost(20_000_000, 100_000_000), INT8) == pytest.approx(2e-3)
    assert RATES.is_bound_by_memory(Cost(20_000_000, 100_000_000), INT8)
    assert RATES.floor_seconds(Cost(20_000_000, 100_000_000), FLOAT32) == pytest.approx(5e-3)
    assert not RATES.is_bound_by_memory(Cost(20_000_000, 100_000_000), FLOAT32)
    assert str(RATES) == "read bandwidth 10.0 GB/s; products, in 10^9 operations/s: int8 100, float32 20"


def test_rates_are_those_of_the_fastest_way_by_the_median_of_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def takes(*seconds: float) -> object:
        left = [0.0, *seconds]

        def way() -> None:
            nonlocal now
            now += left.pop(0) if left else 99.0

        return way

    monkeypatch.setattr(cpu_rates, "_readings", lambda num_bytes: [takes(4.0, 2.0, 3.0), takes(5.0, 5.0, 5.0)])
    monkeypatch.setattr(cpu_rates, "_products", lambda size: {INT8: [takes(1.0, 8.0, 2.0)], FLOAT32: []})
    monkeypatch.setattr(cpu_rates.time, "perf_counter", lambda: now)
    meter = RateMeter(read_bytes=300, size=10)
    meter.sample([INT8, FLOAT32], repeats=3)
    assert meter.rates() == Rates(100.0, {INT8: 2 * 512 * 10 * 10 / 2.0})


def test_a_way_that_takes_many_times_as_long_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now, tries = 0.0, [0, 0]

    def takes(number: int, seconds: float) -> object:
        def way() -> None:
            nonlocal now
            now += seconds
            tries[number] += 1

        return way

    monkeypatch.setattr(cpu_rates, "_readings", lambda num_bytes: [takes(0, 90.0), takes(1, 10.0)])
    monkeypatch.setattr(cpu_rates, "_products", lambda size: {})
    monkeypatch.setattr(cpu_rates.time, "perf_counter", lambda: now)
    meter = RateMeter(read_bytes=300, size=10)
    for _ in range(2):
        meter.sample([], repeats=3)
    assert tries == [1, 8]
    assert meter.rates() == Rates(30.0, {})


def test_a_meter_reads_and_multiplies_for_real() -> None:
    meter = RateMeter(read_bytes=1 << 16, size=64)
    meter.sample(repeats=1)
    rates = meter.rates()
    assert rates.flops.keys() == {"int8", "bfloat16", "float32"}
    assert all(rate > 0 for rate in (rates.bandwidth, *rates.flops.values()))


PROFILE = Profile(
    Load("W1", 1, 128, 128),
    {part: {Part.HEAD: 10e-3, Part.ATTENTION: 4e-3, Part.SCHEDULER: 1e-3}.get(part, 0.0) for part in Part},
    seconds=16e-3,
    unwatched_seconds=15e-3,
    text_seconds=0.8e-3,
    costs={Part.HEAD: Cost(80_000_000, 100_000_000), Part.ATTENTION: Cost(10_000_000, 40_000_000)},
)


def test_the_profile_has_a_line_for_each_part_that_took_time() -> None:
    assert profile_table([PROFILE, PROFILE]).splitlines() == [
        "| part | W1, ms | share | W1, ms | share |",
        "|---|---:|---:|---:|---:|",
        "| scheduler | 1.00 | 6.2% | 1.00 | 6.2% |",
        "| attention | 4.00 | 25.0% | 4.00 | 25.0% |",
        "| head | 10.00 | 62.5% | 10.00 | 62.5% |",
        "| **step** | 16.00 | 100.0% | 16.00 | 100.0% |",
        "| step without the recorder | 15.00 | 93.8% | 15.00 | 93.8% |",
        "| meanwhile in the API process: message to text | 0.80 | 5.0% | 0.80 | 5.0% |",
    ]


def test_the_roofline_says_what_binds_and_what_goes_beyond_the_floor() -> None:
    assert roofline_table(PROFILE, RATES, INT8).splitlines()[2:] == [
        "| scheduler | - | - | - | - | 1.00 | - | 1.00 |",
        "| attention | 10.00 | 40 | 2.00 | float32 products | 4.00 | 50% | 2.00 |",
        "| head | 80.00 | 100 | 8.00 | memory | 10.00 | 80% | 2.00 |",
        "| **step** | 90.00 | 140 | 10.00 |  | 16.00 | 62% | 6.00 |",
    ]
    rates = Rates(RATES.bandwidth, RATES.flops | {BFLOAT16: 2 * RATES.flops[FLOAT32]})
    attention = roofline_table(PROFILE, rates, INT8, BFLOAT16).splitlines()[3]
    assert attention == "| attention | 10.00 | 40 | 1.00 | memory | 4.00 | 25% | 3.00 |"


def test_forms_may_name_their_dtype() -> None:
    assert Form.parse("none:bfloat16", "float32") == Form("none", "bfloat16")
    assert Form.parse("stored", "float32") == Form("stored", "float32")
    for wrong in ("int3", "none:float16", ""):
        with pytest.raises(ValueError, match="choose from stored, int8, int4, none"):
            Form.parse(wrong, "float32")


@pytest.fixture
def quick_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_profile, "RateMeter", partial(RateMeter, read_bytes=1 << 16, size=64))


SMALL = ["--steps", "2", "--streams", "3", "--prefill-tokens", "24", "--threads", "1"]


@pytest.mark.usefixtures("quick_rates")
def test_one_command_profiles_every_form(
    tiny_gemma3_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- step profile: begin --><!-- step profile: end -->")
    threads = torch.get_num_threads()
    forms = "stored,int8,int4,none:bfloat16"
    assert main([str(tiny_gemma3_dir), "--forms", forms, *SMALL, "--write", str(page)]) == 0
    torch.set_num_threads(threads)
    text = capsys.readouterr().out
    assert text.strip() in page.read_text()
    titles = [line for line in text.splitlines() if line.startswith("###")]
    assert titles == [
        "### Weights float32, computed in float32",
        "### Weights int8, computed in float32",
        "### Weights int4, computed in float32",
        "### Weights bfloat16, computed in bfloat16",
    ]
    assert text.count("beside its floor") == 4 * 3


@pytest.mark.usefixtures("quick_rates")
def test_the_demo_model_is_profiled_in_its_own_bits(default_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    assert main([str(default_gguf), *SMALL]) == 0
    torch.set_num_threads(threads)
    text = capsys.readouterr().out
    assert "### Weights in the file's own bits (Q4_K, Q5_0, Q6_K, Q8_0), computed in float32" in text
    assert "\n| head | 178.26 | 336 | " in text  # one row of W1, every byte of the table once
    assert "\n| head | 178.26 | 1,007 | " in text


@pytest.mark.usefixtures("quick_rates")
def test_wrong_usage_is_status_2(tiny_gemma3_dir: Path) -> None:
    for wrong in (["--steps", "0"], ["--forms", "int3"], ["--kv-cache-dtype", "int3"]):
        with pytest.raises(SystemExit) as exit_:
            main([str(tiny_gemma3_dir), *wrong])
        assert exit_.value.code == 2
