"""What this process may really use: cores and memory, as cgroups, affinity and the kernel limit them.

Never the host's totals: in a container of 2 cores and 4 GiB on a host of 64 and 512, these functions say 2 and under 4.
Paths are parameters, so that tests can show other machines.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
PROC = Path("/proc")
CPU_TOPOLOGY = Path("/sys/devices/system/cpu")


def usable_cores(
    *,
    affinity: set[int] | None = None,
    cgroup_root: Path = CGROUP_ROOT,
    proc: Path = PROC,
    topology: Path = CPU_TOPOLOGY,
) -> int:
    """Physical cores this process may run on: affinity, less hyperthread siblings, under the cgroup's CPU quota."""
    cpus = os.sched_getaffinity(0) if affinity is None else affinity
    cores = {_read(topology / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus}
    quotas = [quota for group in _cgroups(cgroup_root, proc, "cpu") if (quota := _cpu_quota(group)) is not None]
    return max(1, min([len(cores), *(math.floor(quota) for quota in quotas)]))


def available_memory(mapped: int = 0, *, cgroup_root: Path = CGROUP_ROOT, proc: Path = PROC) -> int:
    """Bytes this process can still take: the kernel's MemAvailable, under every enclosing cgroup's limit.

    ``mapped`` bytes of files are in use, though both count what they call inactive of that as free.
    """
    limits = [_mem_available(proc) - mapped]
    for group in _cgroups(cgroup_root, proc, "memory"):
        left = _memory_left(group, mapped)
        if left is not None:
            limits.append(left)
    return max(0, min(limits))


def _cgroups(root: Path, proc: Path, controller: str) -> Iterator[Path]:
    """The cgroup directories that enclose this process, innermost first (version 2, then version 1)."""
    for line in (_read(proc / "self/cgroup") or "").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            base = root
        elif controller in controllers.split(","):
            base = root / controller
        else:
            continue
        # in a container without its own cgroup namespace the path names the host's tree; the root is then the limit
        relative = Path(path.lstrip("/"))
        for directory in (relative, *relative.parents):
            if (base / directory).is_dir():
                yield base / directory


def _cpu_quota(group: Path) -> float | None:
    if (text := _read(group / "cpu.max")) is not None:
        quota, period = [*text.split(), "100000"][:2]
        return None if quota == "max" else int(quota) / int(period)
    quota_us, period_us = _read_int(group / "cpu.cfs_quota_us"), _read_int(group / "cpu.cfs_period_us")
    return quota_us / period_us if quota_us and quota_us > 0 and period_us else None


def _memory_left(group: Path, mapped: int) -> int | None:
    """Limit less use, counting file cache that the kernel would drop first as free, but for what is mapped of it.

    What is mapped may be active already, or another group's: as much of it as there is active cache is taken for such.
    """
    limit = _read_int(group / "memory.max")
    used = _read_int(group / "memory.current")
    if limit is None and used is None:
        limit = _read_int(group / "memory.limit_in_bytes")
        used = _read_int(group / "memory.usage_in_bytes")
    if limit is None or used is None:
        return None
    cache = {"inactive_file": 0, "active_file": 0}
    for line in (_read(group / "memory.stat") or "").splitlines():
        key, _, value = line.partition(" ")
        if (key := key.removeprefix("total_")) in cache:  # version 1 has the whole hierarchy's after the group's own
            cache[key] = int(value)
    in_use = max(0, mapped - cache["active_file"])
    return limit - used + max(0, cache["inactive_file"] - in_use)


def _mem_available(proc: Path) -> int:
    for line in (_read(proc / "meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _read_int(path: Path) -> int | None:
    """None for a missing file and for "max"."""
    text = _read(path)
    return int(text) if text and text.lstrip("-").isdigit() else None
