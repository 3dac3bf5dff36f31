"""The engine's process from outside: what it says where it cannot start, and what it sets before torch is there."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from engine.channel import LENGTH, decode_from_engine, frame
from engine.config import EngineConfig
from engine.log_format import LogFormat
from engine.messages import EngineFailed
from engine.process import OPENMP_SPINS

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from engine import process, startup

class DoesNotFit(Exception):
    'Like those of a compiler of kernels, which are no RuntimeError.'

def build_engine(*arguments):
    raise DoesNotFit("out of resource: shared memory\\nand more lines")

startup.build_engine = build_engine
sys.exit(process.main())
"""


def start(config: EngineConfig) -> tuple[subprocess.CompletedProcess[str], bytes]:
    """The process that could not start, and what it sent."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(frame(config))
        ours.settimeout(60)
        finished = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(theirs.fileno())],
            cwd=ROOT,
            pass_fds=[theirs.fileno()],
            capture_output=True,
            text=True,
            check=False,
        )
        theirs.close()
        return finished, b"".join(iter(lambda: ours.recv(4096), b""))


def test_an_error_of_any_kind_at_the_start_is_told_in_one_line_and_traced() -> None:
    finished, received = start(EngineConfig(model="m"))
    reason = "the engine could not start: DoesNotFit: out of resource: shared memory"
    assert decode_from_engine(received[LENGTH.size :]) == EngineFailed(reason)
    assert finished.returncode == 1
    assert "Traceback" in finished.stderr


def test_the_process_logs_in_the_format_that_its_config_says() -> None:
    finished, _ = start(EngineConfig(model="m", log_format=LogFormat.JSON))
    [line] = map(json.loads, finished.stderr.splitlines())
    assert (line["level"], line["logger"]) == ("error", "octavo.engine")
    assert line["message"] == "the engine could not start"
    assert line["stack"].endswith("DoesNotFit: out of resource: shared memory\nand more lines\n")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"GOMP_SPINCOUNT": OPENMP_SPINS}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
    ],
)
def test_openmp_is_calmed_before_torch_is_there_unless_the_user_has_a_wish(
    given: dict[str, str], expected: dict[str, str]
) -> None:
    code = (
        "import json, os, sys; from engine.process import _calm_openmp; _calm_openmp();"
        "print(json.dumps(['torch' in sys.modules, {name: value for name, value in os.environ.items()"
        " if name in ('GOMP_SPINCOUNT', 'OMP_WAIT_POLICY')}]))"
    )
    others = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", code], env=others | given, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [False, expected]
