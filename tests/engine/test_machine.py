"""Cores and memory as containers really limit them, shown on trees of other machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.machine import available_memory, usable_cores

GIB = 1 << 30


class Machine:
    """Fake /sys/fs/cgroup, /proc and CPU topology under one folder."""

    def __init__(self, root: Path) -> None:
        self.cgroup_root = root / "cgroup"
        self.proc = root / "proc"
        self.topology = root / "cpu"
        for folder in (self.cgroup_root, self.proc / "self", self.topology):
            folder.mkdir(parents=True)
        self.host_memory(64 * GIB)

    def inside(self, *lines: str) -> None:
        """What /proc/self/cgroup says."""
        (self.proc / "self/cgroup").write_text("".join(f"{line}\n" for line in lines))

    def group(self, path: str, **files: str) -> None:
        folder = self.cgroup_root / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(f"{text}\n")

    def siblings(self, *cores: tuple[int, ...]) -> None:
        for core in cores:
            for cpu in core:
                folder = self.topology / f"cpu{cpu}/topology"
                folder.mkdir(parents=True)
                (folder / "thread_siblings_list").write_text(",".join(map(str, core)) + "\n")

    def host_memory(self, available: int) -> None:
        (self.proc / "meminfo").write_text(f"MemTotal: 999 kB\nMemFree: 1 kB\nMemAvailable:  {available // 1024} kB\n")

    def cores(self, cpus: int) -> int:
        return usable_cores(
            affinity=set(range(cpus)), cgroup_root=self.cgroup_root, proc=self.proc, topology=self.topology
        )

    def memory(self) -> int:
        return available_memory(cgroup_root=self.cgroup_root, proc=self.proc)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# ---- cores


@pytest.mark.parametrize(
    ("cpu_max", "cores"),
    [
        ("max 100000", 8),
        ("max", 8),
        ("200000 100000", 2),
        ("150000 100000", 1),
        ("50000 100000", 1),
        ("1000000 100000", 8),
        ("250000 50000", 5),
        ("300000", 3),
    ],
)
def test_version_2_quota_in_whole_cores_at_least_one(machine: Machine, cpu_max: str, cores: int) -> None:
    machine.inside("0::/")
    machine.group("", cpu__max=cpu_max)
    assert machine.cores(8) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("200000", 2), ("150000", 1), ("1000", 1), ("0", 8)])
@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
def test_version_1_quota(machine: Machine, quota: str, cores: int, controllers: str) -> None:
    machine.inside("5:memory:/", f"4:{controllers}:/docker/abc", "1:name=systemd:/x")
    machine.group("cpu/docker/abc", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    assert machine.cores(8) == cores


def test_the_tightest_of_all_enclosing_groups_counts(machine: Machine) -> None:
    machine.inside("0::/pod/container/worker")
    machine.group("pod/container/worker", cpu__max="max 100000")
    machine.group("pod/container", cpu__max="600000 100000")
    machine.group("pod", cpu__max="300000 100000")
    machine.group("other", cpu__max="100000 100000")
    assert machine.cores(8) == 3


def test_a_path_of_the_hosts_tree_falls_back_to_the_visible_root(machine: Machine) -> None:
    """Without a cgroup namespace /proc names the host's path, which a container does not see."""
    machine.inside("0::/kubepods/pod1234/5678")
    machine.group("", cpu__max="200000 100000", memory__max=str(4 * GIB), memory__current=str(GIB))
    assert machine.cores(8) == 2
    assert machine.memory() == 3 * GIB


def test_hyperthreads_of_one_core_count_once(machine: Machine) -> None:
    machine.inside("0::/")
    machine.siblings((0, 4), (1, 5), (2, 6), (3, 7))
    assert machine.cores(8) == 4
    assert machine.cores(4) == 4
    assert (
        usable_cores(affinity={0, 4, 5}, cgroup_root=machine.cgroup_root, proc=machine.proc, topology=machine.topology)
        == 2
    )


def test_without_topology_each_cpu_is_a_core_and_without_cgroups_nothing_limits(machine: Machine) -> None:
    assert machine.cores(3) == 3


def test_both_versions_mounted_together_both_limit(machine: Machine) -> None:
    machine.inside("4:cpu,cpuacct:/box", "0::/box")
    machine.group("cpu/box", cpu__cfs_quota_us="300000", cpu__cfs_period_us="100000")
    assert machine.cores(8) == 3


def test_this_machine_has_at_least_one_core_and_not_more_than_it_may_use() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


# ---- memory


def test_version_2_memory_is_limit_less_use_plus_what_the_kernel_would_drop(machine: Machine) -> None:
    machine.inside("0::/box")
    machine.group(
        "box",
        memory__max=str(8 * GIB),
        memory__current=str(3 * GIB),
        memory__stat=f"anon {2 * GIB}\nactive_file 5\ninactive_file {GIB // 2}\ninactive_anon 7",
    )
    assert machine.memory() == 8 * GIB - 3 * GIB + GIB // 2


def test_version_2_without_a_limit_leaves_the_hosts_available_memory(machine: Machine) -> None:
    machine.inside("0::/box")
    machine.group("box", memory__max="max", memory__current=str(3 * GIB))
    assert machine.memory() == 64 * GIB


@pytest.mark.parametrize(
    ("inactive", "active", "mapped", "left"),
    [
        (2, 0, 0, 5),
        (2, 0, 1, 4),  # it is among what seems free
        (2, 1, 1, 5),  # it is active by now, and counts as used
        (2, 1, 2, 4),
        (2, 0, 3, 3),  # another group's: nothing of this one's is free for it, and no more is taken off
    ],
)
def test_files_that_are_mapped_and_in_use_are_not_free(
    machine: Machine, inactive: int, active: int, mapped: int, left: int
) -> None:
    machine.inside("0::/box")
    stat = f"active_file {active * GIB}\ninactive_file {inactive * GIB}"
    machine.group("box", memory__max=str(8 * GIB), memory__current=str(5 * GIB), memory__stat=stat)
    found = available_memory(mapped * GIB, cgroup_root=machine.cgroup_root, proc=machine.proc)
    assert found == left * GIB


def test_files_that_are_mapped_and_in_use_are_taken_off_what_the_host_calls_available(machine: Machine) -> None:
    machine.inside("0::/box")
    left = [available_memory(size, cgroup_root=machine.cgroup_root, proc=machine.proc) for size in (GIB, 65 * GIB)]
    assert left == [63 * GIB, 0]


def test_version_1_memory_counts_the_whole_hierarchys_file_cache(machine: Machine) -> None:
    machine.inside("9:memory:/box")
    machine.group(
        "memory/box",
        memory__limit_in_bytes=str(8 * GIB),
        memory__usage_in_bytes=str(5 * GIB),
        memory__stat=f"inactive_file 1024\ntotal_inactive_file {2 * GIB}",
    )
    machine.group("memory", memory__limit_in_bytes="9223372036854771712", memory__usage_in_bytes=str(50 * GIB))
    assert machine.memory() == 5 * GIB


def test_the_tightest_enclosing_memory_limit_counts(machine: Machine) -> None:
    machine.inside("0::/pod/container")
    machine.group("pod", memory__max=str(4 * GIB), memory__current=str(3 * GIB))
    machine.group("pod/container", memory__max=str(8 * GIB), memory__current=str(GIB))
    assert machine.memory() == GIB


def test_a_host_short_of_memory_limits_a_generous_container(machine: Machine) -> None:
    machine.inside("0::/box")
    machine.group("box", memory__max=str(8 * GIB), memory__current="0")
    machine.host_memory(2 * GIB)
    assert machine.memory() == 2 * GIB


def test_a_group_over_its_limit_has_nothing_left(machine: Machine) -> None:
    machine.inside("0::/box")
    machine.group("box", memory__max=str(GIB), memory__current=str(2 * GIB))
    assert machine.memory() == 0


def test_this_machine_has_memory() -> None:
    assert available_memory() > 0
