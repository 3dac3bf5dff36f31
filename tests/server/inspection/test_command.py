"""`octavo inspect` on the command line: what it prints, and what it says where it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from server import cli
from server.flags import _size

ROOT = Path(__file__).resolve().parents[3]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["inspect", *arguments]) == 0
    return capsys.readouterr().out


def test_the_report_of_the_default_model(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "--memory", "1GB", "--lengths", "1024,32768").splitlines()
    facts = dict(line.strip().split("  ", 1) for line in lines[:12])
    assert {name: value.strip() for name, value in facts.items()} == {
        "model": "gemma-3-270m",
        "architecture": "gemma3",
        "parameters": "268,098,176",
        "weights": "246.59 MB as stored: Q8_0 179.82 MB, Q5_0 43.59 MB, Q4_K 13.27 MB, Q6_K 9.68 MB, F32 223.74 kB",
        "layers": "18: 3 see everything, 15 see 512 tokens",
        "heads": "4 query and 1 KV heads of 256 elements",
        "context": "32,768 tokens",
        "rope": "base 10,000 (15 layers); base 1,000,000 (3 layers)",
        "vocabulary": "262,144 tokens, SentencePiece BPE",
        "chat template": "no",
        "memory": "1.00 GB as asked for, less the weights as they are stored",
        "for KV pages": "753.41 MB, in pages of 16 tokens",
    }
    rows = [line.split() for line in lines if line.startswith("  bfloat16")]
    assert rows == [
        ["bfloat16", "3,072", "B", "15,360", "B", "11.26", "MB", "108.77", "MB"],
        ["bfloat16", "15,328", "242,608", "66", "6"],
    ]


def test_json_has_the_same_in_plain_numbers(tiny_gemma3_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (str(tiny_gemma3_dir), "--kv-cache-memory-bytes", "1000000", "--kv-cache-dtype", "fp8", "--json")
    found = json.loads(printed(capsys, *arguments))
    assert (found["layers"], found["full_layers"], found["windowed_layers"], found["windows"]) == (7, 1, 6, [32])
    assert (found["tokenizer"], found["has_chat_template"]) == ("tokenizer.json (BPE)", False)
    assert found["page_memory"] == 1_000_000
    [fits] = found["kv"]
    page = 2 * 16 * (32 + 4)
    assert (fits["dtype"], fits["page_bytes"], fits["pages"]) == ("fp8_e4m3", page, 1_000_000 // page)
    assert fits["bytes_per_token"] == {"full": 2 * 36, "windowed": 6 * 2 * 36}
    pages = 1024 // 16 + 6 * 3
    assert fits["sequences"] == [{"length": 1024, "bytes": pages * page, "fit": 1_000_000 // page // pages}]


def test_a_chat_template_is_seen_wherever_it_is(
    tiny_llama_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in tiny_llama_dir.iterdir():
        (tmp_path / file.name).symlink_to(file)
    assert not json.loads(printed(capsys, str(tmp_path), "--json"))["has_chat_template"]
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert json.loads(printed(capsys, str(tmp_path), "--json"))["has_chat_template"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["/no/such/model"], "/no/such/model"),
        (["--block-size", "7"], "--block-size 7: choose 8, 16"),
        (["--kv-cache-dtype", "int3"], "--kv-cache-dtype int3: choose one of auto"),
        (["--lengths", "40000"], "--lengths 40000: the context is 32768 tokens"),
        (["--max-model-len", "40000"], "--max-model-len 40000: the model was made for at most 32768"),
        (["--revision", "main"], "--revision main: needs a MODEL"),
        (["--memory", "1GB", "--kv-cache-memory-bytes", "1"], "choose one"),
        (["no-org/no-model", "--offline"], "no-org/no-model is not in the cache"),
    ],
)
def test_what_cannot_be_told_is_one_sentence(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", *arguments]) == 1
    shown = capsys.readouterr()
    [line] = shown.err.splitlines()
    assert line.startswith("octavo: ")
    assert problem in line
    assert shown.out == ""


@pytest.mark.parametrize("arguments", [["--memory", "much"], ["--lengths", "0"], ["--lengths", "1,,2"], ["--fast"]])
def test_wrong_usage_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["inspect", *arguments])
    assert exit_.value.code == 2
    assert "usage: octavo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"),
    [("24GB", 24 * 10**9), ("80GiB", 80 * 2**30), ("1.5 mb", 1_500_000), ("1000", 1000), ("2T", 2 * 10**12)],
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert _size(text) == size


def cpu_seconds(program: str) -> tuple[float, str]:
    """Of the processor, not of the clock, that Python takes to run it; and what it prints."""
    before = os.times()
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4]), run.stdout


def test_the_default_model_is_inspected_within_half_a_second() -> None:
    """Or, on a slow or busy machine, in as long as 25 starts of Python take, at the best of three of either."""
    inspections, starts = [], []
    for _ in range(3):
        seconds, printed = cpu_seconds("from server.cli import main; main(['inspect'])")
        assert "gemma-3-270m" in printed
        inspections.append(seconds)
        starts.append(cpu_seconds("pass")[0])
    assert min(inspections) < max(0.5, 25 * min(starts))
