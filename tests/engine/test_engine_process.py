"""EngineProcess: that none is left behind, whoever holds it and however it ends, and that it imports nothing heavy."""

from __future__ import annotations

import os
import signal
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


def has_ended(pid: int) -> bool:
    """Whether all that is left is for its parent to see how it ended."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_it_ends_with_its_context_also_where_nobody_spoke_to_it() -> None:
    with EngineProcess() as process:
        pid = process.pid
        assert pid is not None
        assert is_running(pid)
    assert not is_running(pid)
    assert process.pid is None
    assert process.connection.fileno() == -1


def test_control_c_is_for_its_parent_alone_from_the_first_moment_on() -> None:
    with EngineProcess() as process:
        assert process.pid is not None
        for _ in range(100):  # more than two seconds, in which it imports
            os.kill(process.pid, signal.SIGINT)
            time.sleep(0.025)
        assert not has_ended(process.pid)
        status = Path(f"/proc/{process.pid}/status").read_text()
    masks = dict(line.split(":\t") for line in status.splitlines() if line.startswith(("SigBlk", "SigIgn")))
    bit = 1 << (signal.SIGINT - 1)
    assert int(masks["SigIgn"], 16) & bit
    assert not int(masks["SigBlk"], 16) & bit
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


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
