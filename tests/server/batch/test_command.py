"""`octavo batch` as a process, on a tiny model: stopped or killed at any moment, it neither loses nor repeats one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
NUM_REQUESTS = 120


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    lines = []
    for number in range(NUM_REQUESTS):
        body = {"model": "tiny", "prompt": f"Number {number}", "max_tokens": 30, "ignore_eos": True, "temperature": 0}
        lines.append({"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def batch(model: Path, requests: Path, output: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "server.cli", "batch", str(requests), str(model), "-o", str(output)]
    sizes = ["--device", "cpu", "--threads", "1", "--num-gpu-blocks-override", "200", "--max-num-seqs", "4"]
    return subprocess.Popen(
        [*command, *sizes, "--served-model-name", "tiny", *flags],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its status and what it said."""
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def until_answered(process: subprocess.Popen[str], output: Path, count: int) -> None:
    while process.poll() is None:
        if output.exists() and output.read_bytes().count(b"\n") >= count:
            return
        try:
            process.wait(0.01)
        except subprocess.TimeoutExpired:
            continue


def texts(output: Path) -> dict[str, str]:
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert len({one["custom_id"] for one in answers}) == len(answers)
    return {one["custom_id"]: one["response"]["body"]["choices"][0]["text"] for one in answers}


def test_killed_and_interrupted_runs_add_up_to_one_that_was_not(
    requests: Path, tiny_llama_dir: Path, tmp_path: Path
) -> None:
    whole, pieces = tmp_path / "whole.jsonl", tmp_path / "pieces.jsonl"
    undisturbed = batch(tiny_llama_dir, requests, whole)
    assert ended(undisturbed)[0] == 0
    for number, (name, status) in enumerate([(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGKILL, -9)], 1):
        process = batch(tiny_llama_dir, requests, pieces)
        until_answered(process, pieces, 20 * number)
        process.send_signal(name)
        assert ended(process)[0] == status
        assert 20 * number <= len(pieces.read_text().splitlines()) < NUM_REQUESTS
    with pieces.open("rb+") as cut:
        cut.truncate(pieces.stat().st_size - 9)  # as a machine that loses power may
    last = batch(tiny_llama_dir, requests, pieces)
    status, errors = ended(last)
    assert status == 0
    assert f"of {NUM_REQUESTS} requests are answered already" in errors
    assert len(texts(pieces)) == NUM_REQUESTS
    assert texts(pieces) == texts(whole)


def test_nothing_left_to_do_needs_no_model(requests: Path, tiny_llama_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    assert ended(batch(tiny_llama_dir, requests, output))[0] == 0
    again = batch(tmp_path / "no model", requests, output)
    status, errors = ended(again)
    assert status == 0
    assert "nothing was left to do" in errors
    anew = batch(tmp_path / "no model", requests, output, "--overwrite")
    status, errors = ended(anew)
    assert status == 1
    assert "no model" in errors


def test_answers_that_are_errors_are_status_3(tiny_llama_dir: Path, tmp_path: Path) -> None:
    requests, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "other", "prompt": "x"}}
    requests.write_text(json.dumps(line) + "\n")
    process = batch(tiny_llama_dir, requests, output)
    status, errors = ended(process)
    assert status == 3
    assert "1 of them an error" in errors
    [answer] = [json.loads(line) for line in output.read_text().splitlines()]
    assert answer["response"]["status_code"] == 404
    assert answer["response"]["body"]["error"]["code"] == "model_not_found"


def test_the_input_is_never_the_output(requests: Path, tiny_llama_dir: Path) -> None:
    before = requests.read_bytes()
    process = batch(tiny_llama_dir, requests, requests)
    status, errors = ended(process)
    assert status == 1
    assert "is the input" in errors
    overwriting = batch(tiny_llama_dir, requests, requests, "--overwrite")
    assert ended(overwriting)[0] == 1
    assert requests.read_bytes() == before
