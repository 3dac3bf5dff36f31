"""EngineProcess: that none is left behind, whoever holds it and however it ends, and that it imports nothing heavy."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from engine.client import EngineClient
from engine.config import EngineConfig
from engine.engine_process import EngineProcess

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_ends_with_its_context_also_where_nobody_spoke_to_it() -> None:
    with EngineProcess() as process:
        pid = process.pid
        assert pid is not None
        assert is_running(pid)
    assert not is_running(pid)
    assert process.pid is None
    assert process.connection.fileno() == -1


def test_it_ends_when_its_parent_is_killed() -> None:
    program = (
        "import os, signal; from engine.engine_process import EngineProcess; process = EngineProcess(); "
        "print(process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    finished = subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, check=False)
    limit = time.monotonic() + PATIENCE
    while is_running(int(finished.stdout)):
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_a_command_starts_it_before_it_has_imported_anything_heavy() -> None:
    program = (
        "import sys; import engine.engine_process; "
        "print([name for name in ('asyncio', 'msgspec', 'numpy', 'pydantic') if name in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert finished.stdout.strip() == "[]"


async def test_a_client_takes_one_that_runs_already(tiny_llama_dir: Path) -> None:
    with EngineProcess() as process:
        client = EngineClient(
            EngineConfig(model=str(tiny_llama_dir), device="cpu", threads=1, num_gpu_blocks_override=100),
            process=process,
        )
        await client.start()
        assert client.pid == process.pid
        await client.close()
        assert client.pid is None
        assert process.wait() == 0  # it was told to end, and not killed
