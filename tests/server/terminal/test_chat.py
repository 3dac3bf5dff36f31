"""`octavo chat` as a process: with a model of its own, with a server, and with neither."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SIZES = ("--device", "cpu", "--threads", "1", "--num-gpu-blocks-override", "200")
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "server.cli", *flags]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def chat(*flags: str, typed: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("chat", *flags),
        input=typed,
        cwd=ROOT,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def url(tiny_llama_dir: Path) -> Iterator[str]:
    flags = (str(tiny_llama_dir), "--port", "0", "--chat-template", TEMPLATE, "--api-key", "secret")
    server = subprocess.Popen(
        command("serve", *flags, *SIZES), cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    try:
        for line in server.stderr:
            if found := re.search(r"serving +(http://\S+)", line):
                break
        yield found[1]
    finally:
        server.terminate()
        server.communicate()


def test_a_model_of_its_own_answers_like_a_server(url: str, tiny_llama_dir: Path) -> None:
    typed = "Hello\n\n/stats\nAnd now?\n/reset\nHello\n/nonsense\n/exit\nnever asked\n"
    flags = ("--temperature", "0", "--max-tokens", "12")
    own = chat(str(tiny_llama_dir), "--chat-template", TEMPLATE, *SIZES, *flags, typed=typed)
    remote = chat("--url", url, *flags, typed=typed, OCTAVO_API_KEY="secret")
    assert (own.returncode, remote.returncode) == (0, 0)
    assert own.stdout == remote.stdout != ""
    assert "12 tokens, the first after" in own.stderr
    assert "no such command: /nonsense" in own.stderr


def test_a_wrong_key_and_a_server_that_is_not_there_are_one_sentence(url: str) -> None:
    denied = chat("--url", url, typed="Hello\n", OCTAVO_API_KEY="wrong")
    assert denied.returncode == 1
    assert "Traceback" not in denied.stderr
    [line] = denied.stderr.splitlines()
    assert line.startswith("octavo: ")
    absent = chat("--url", "http://127.0.0.1:9", typed="Hello\n")
    assert (absent.returncode, absent.stdout) == (1, "")
    assert absent.stderr.startswith("octavo: http://127.0.0.1:9/v1: ") or "127.0.0.1:9" in absent.stderr
    assert chat("--url", "ftp://x", typed="").returncode == 1


def test_an_answer_that_fails_in_a_pipe_is_status_1(url: str) -> None:
    failed = chat("--url", url, "--temperature", "9", typed="Hello\n", OCTAVO_API_KEY="secret")
    assert failed.returncode == 1
    assert "temperature" in failed.stderr


def test_control_c_ends_an_answer_and_then_the_chat(tiny_llama_dir: Path) -> None:
    ours, theirs = pty.openpty()
    flags = (str(tiny_llama_dir), "--chat-template", TEMPLATE, *SIZES, "--max-tokens", "1500", "--temperature", "0")
    process = subprocess.Popen(
        command("chat", *flags), cwd=ROOT, env=environment(TERM="dumb"), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = ""

    def until(pattern: str) -> None:
        nonlocal shown
        while not re.search(pattern, shown):
            shown += os.read(ours, 4096).decode(errors="replace")
        shown = ""

    try:
        until("> $")
        os.write(ours, b"Hello\n")
        until(r"Hello\r\n(?s:.){20,}")
        process.send_signal(signal.SIGINT)
        until(r"\[interrupted\]\s+> $")
        os.write(ours, b"/stats\n/exit\n")
        until("no answer yet")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_its_help_comes_without_loading_anything() -> None:
    result = subprocess.run(command("chat", "--help"), cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert result.returncode == 0
    assert "--url" in result.stdout
