"""The conditions of a measurement: what machine, how busy with other work, how much memory the server took.

Reads /proc; where there is none every figure is None. Invariant: "other" work is what neither this process nor the
measured server did, as a share of all cores.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

PROC = Path("/proc")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Where and when a result was taken. ``cores`` are those this process may use; ``load_1m`` is the load average."""

    date: str
    cpu: str
    cores: int
    memory_gib: float | None
    system: str
    python: str
    load_1m: float | None

    @classmethod
    def now(cls) -> Conditions:
        return cls(
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            cpu=_cpu_model(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            memory_gib=_memory_gib(),
            # a release goes on with names that distributions and hosts give it
            system=f"{platform.system()} {'.'.join(platform.release().split('.')[:2])} {platform.machine()}",
            python=platform.python_version(),
            load_1m=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        )

    def __str__(self) -> str:
        memory = "" if self.memory_gib is None else f", {self.memory_gib:.0f} GiB"
        load = "" if self.load_1m is None else f", load {self.load_1m:.1f} before"
        return f"{self.date}, {self.cpu}, {self.cores} cores{memory}{load}, {self.system}, Python {self.python}"


@dataclass(frozen=True)
class CpuClock:
    """CPU seconds spent so far: ``busy`` by the whole machine, ``ours`` by this process and the measured server."""

    wall: float
    busy: float
    ours: float

    @classmethod
    def read(cls, server_pid: int | None) -> CpuClock | None:
        """None without /proc or without a server whose share could be told apart."""
        if server_pid is None or not (PROC / "stat").exists():
            return None
        pids = {os.getpid(), *process_tree(server_pid)}
        return cls(wall=time.perf_counter(), busy=_machine_cpu_seconds(), ours=_cpu_seconds(pids))


def other_cpu_share(before: CpuClock | None, after: CpuClock | None) -> float | None:
    """The share of all cores, 0 to 1, that other work took between two readings."""
    if before is None or after is None or after.wall <= before.wall:
        return None
    other = (after.busy - before.busy) - (after.ours - before.ours)
    share = other / ((after.wall - before.wall) * (os.cpu_count() or 1))
    return min(1.0, max(0.0, share))


def process_tree(pid: int) -> list[int]:
    """The process and all its descendants that are alive."""
    children: dict[int, list[int]] = {}
    for entry in PROC.glob("[0-9]*"):
        if (fields := _stat_fields(int(entry.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    tree = [pid]
    for member in tree:  # grows while it is walked
        tree.extend(children.get(member, ()))
    return tree


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended; of one that ended, its parent may not have asked yet."""
    fields = _stat_fields(pid)
    return fields is not None and fields[0] not in "ZX"


def memory_mib(pid: int) -> float | None:
    """Proportional set size of a process tree: what it takes, with pages shared among it counted once."""
    sizes = [size for member in process_tree(pid) if (size := _pss_kib(member)) is not None]
    return sum(sizes) / 1024 if sizes else None


def cache_bytes() -> int:
    """Size of the largest cache that the first core reads through; 0 where Linux does not say."""
    sizes = [0]
    for path in CACHES.glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]])
    return max(sizes)


def _stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on (man 5 proc, field 3)."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def _cpu_seconds(pids: Iterable[int]) -> float:
    ticks = 0
    for pid in pids:
        if (fields := _stat_fields(pid)) is not None:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _machine_cpu_seconds() -> float:
    """User, nice, system, interrupts and soft interrupts of all cores."""
    with (PROC / "stat").open() as file:
        ticks = [int(value) for value in file.readline().split()[1:]]
    return (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6]) / os.sysconf("SC_CLK_TCK")


def _pss_kib(pid: int) -> int | None:
    return _number_after("Pss:", PROC / str(pid) / "smaps_rollup")


def _memory_gib() -> float | None:
    kib = _number_after("MemTotal:", PROC / "meminfo")
    return None if kib is None else kib / 2**20


def _number_after(key: str, path: Path) -> int | None:
    line = _line_with(key, path)
    return None if line is None else int(line.split()[1])


def _cpu_model() -> str:
    line = _line_with("model name", PROC / "cpuinfo")
    return platform.processor() or platform.machine() if line is None else line.split(":", 1)[1].strip()


def _line_with(key: str, path: Path) -> str | None:
    try:
        with path.open() as file:
            return next((line for line in file if line.startswith(key)), None)
    except OSError:
        return None
