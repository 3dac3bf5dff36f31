"""Decode attention on CPUs beside the bandwidth: bytes by hand, tables, and that every page dtype really runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import cpu_attention, machine
from benchmarks.cpu_attention import DTYPES, Bench, Case, Result, main, table, verdict
from benchmarks.cpu_rates import RateMeter
from kernels.backends import choose_backend
from kernels.roofline import AttentionShape


@pytest.mark.parametrize(("dtype", "row"), [("float32", 512), ("float16", 256), ("int8", 132), ("fp8_e4m3", 132)])
def test_bytes_are_those_of_keys_values_and_scales(dtype: str, row: int) -> None:
    backend, _ = choose_backend(torch.device("cpu"))
    heads = AttentionShape(16, 4, 128, dtype_bytes=0, page_bytes=DTYPES[dtype].itemsize)
    result = Bench(backend, heads, dtype, num_pages=12).measure(Case(dtype, 2, 96), seconds=0.0)
    assert result.bytes == 2 * 96 * 2 * 4 * row
    assert result.seconds > 0


def test_the_largest_case_reads_every_page_but_the_null_page() -> None:
    backend, _ = choose_backend(torch.device("cpu"))
    seen: list[torch.Tensor] = []

    class Spy(type(backend)):  # type: ignore[misc]
        def attend(self, query, pages, metadata, **options):  # type: ignore[no-untyped-def]
            seen.append(metadata.block_table)
            return super().attend(query, pages, metadata, **options)

    heads = AttentionShape(4, 1, 16, dtype_bytes=0, page_bytes=4)
    Bench(Spy(backend.library), heads, "float32", num_pages=6).measure(Case("float32", 3, 32), seconds=0.0)
    assert sorted(seen[0].flatten().tolist()) == [1, 2, 3, 4, 5, 6]
    assert seen[0].flatten().tolist() != [1, 2, 3, 4, 5, 6]


RESULTS = [
    Result(Case("float32", 1, 512), 1_000, 1e-7),
    Result(Case("float32", 8, 512), 8_000, 1e-6),
    Result(Case("int8", 1, 512), 250, 1e-7),
    Result(Case("int8", 8, 512), 2_000, 1e-6),
]


def test_the_table_has_rates_and_shares_and_marks_what_caches_hold() -> None:
    assert table(RESULTS, bandwidth=10e9, cached_bytes=1_000).splitlines() == [
        "| batch | length | float32 | int8 |",
        "|---:|---:|---:|---:|",
        "| 1 | 512 | 10.0 (100%) c | 2.5 (25%) c |",
        "| 8 | 512 | 8.0 (80%) | 2.0 (20%) |",
    ]


def test_the_verdict_names_what_misses_the_target_and_leaves_out_what_caches_hold() -> None:
    assert verdict(RESULTS, 10e9, 1_000) == (
        "1 of 2 cases that the caches do not hold reach 80%; below it: int8 8 x 512."
    )
    assert verdict(RESULTS[:2], 10e9, 500) == "2 of 2 cases that the caches do not hold reach 80%."


def test_the_largest_cache_is_read_off_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for number, size in enumerate(("32K", "1024K", "32768K")):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}/size").write_text(f"{size}\n")
    monkeypatch.setattr(machine, "CACHES", tmp_path)
    assert machine.cache_bytes() == 32 << 20
    monkeypatch.setattr(machine, "CACHES", tmp_path / "none")
    assert machine.cache_bytes() == 0


def test_one_command_measures_every_dtype(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cpu_attention, "RateMeter", lambda num_bytes: RateMeter(1 << 16, size=64))
    page = tmp_path / "page.md"
    page.write_text("<!-- cpu attention: begin --><!-- cpu attention: end -->")
    small = ["--batches", "1,2", "--lengths", "32,64", "--seconds", "0", "--heads", "4,2,16"]
    assert main([*small, "--write", str(page)]) == 0
    assert "| batch | length | float32 | bfloat16 | float16 | int8 | fp8_e4m3 |" in page.read_text()
    assert "| 2 | 64 |" in capsys.readouterr().out
    for wrong in (["--dtypes", "int4"], ["--lengths", "40"], ["--heads", "4,2"], ["--batches", "0"]):
        with pytest.raises(SystemExit):
            main([*small, *wrong])
