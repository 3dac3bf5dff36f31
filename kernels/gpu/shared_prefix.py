"""Plan shared-prefix decode on the host: which sequences' block tables begin with the same pages, and whether it pays.

Pure numpy over what the host knows anyway; nothing waits for the device. A sequence belongs to one group at most. The
groups are chosen to save many reads of pages, (members - 1) x pages each, greedily: from the longest common prefixes to
the shortest, joining sequences that are in no group yet, and those of groups that gain by it. Only full pages before a
sequence's newest token are shared, and only sequences with one row take part. ``kernels.gpu.cascade`` carries the plan
out, for layers without a window.

The plan holds as long as the batch, and so its tables, keep their order; a longer sequence changes nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.attention import SharedPrefix

IntArray = npt.NDArray[np.integer]

# Estimates, in positions of one KV head that might be read in the same time; not measured.
LAUNCH_POSITIONS = 8192  # two more launches, at a GPU's bandwidth and 8 KV heads
PARTS_PER_MEMBER = 4  # parts that a member's head writes and its merge reads
POSITIONS_PER_PART = 2  # a part is written and read in float32, a position's key and value read in 16 bits


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Sequences, by row of the batch, whose first ``num_pages`` pages are the same."""

    members: tuple[int, ...]
    num_pages: int

    @property
    def saved_pages(self) -> int:
        return (len(self.members) - 1) * self.num_pages


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbours in the order of their tables, ``start : end``, and the best groups among them."""

    start: int
    end: int
    groups: tuple[PrefixGroup, ...]

    def join(self, after: _Run, num_pages: int, order: list[int]) -> _Run:
        """Both runs as one, given that all of it has ``num_pages`` in common, no more than any of its groups."""
        groups = self.groups + after.groups
        kept = tuple(group for group in groups if group.saved_pages > len(group.members) * num_pages)
        elsewhere = {member for group in kept for member in group.members}
        rows = order[self.start : after.end]
        joined = PrefixGroup(tuple(sorted(row for row in rows if row not in elsewhere)), num_pages)
        dissolved = sum(group.saved_pages for group in groups if group not in kept)
        return _Run(self.start, after.end, (*kept, joined) if joined.saved_pages > dissolved else groups)


def find_groups(block_tables: IntArray, num_full_pages: IntArray) -> list[PrefixGroup]:
    """Groups of at least two rows of ``block_tables`` [num_seqs, max_blocks] that save many reads, by first member.

    ``num_full_pages`` [num_seqs] is how many of its pages a sequence may share; the null page, 0, is never shared.
    """
    num_seqs, width = block_tables.shape
    if num_seqs < 2 or width == 0:
        return []
    tables = np.where(np.arange(width) < num_full_pages[:, None], block_tables, 0).astype(">u4")
    order = sorted(range(num_seqs), key=lambda row: tables[row].tobytes())
    tables = tables[order]
    is_shared = (tables[1:] == tables[:-1]) & (tables[1:] != 0)
    num_shared = np.where(is_shared.all(axis=1), width, np.argmin(is_shared, axis=1))

    starting = {row: _Run(row, row + 1, ()) for row in range(num_seqs)}
    ending = {run.end: run for run in starting.values()}
    for left in np.argsort(-num_shared, kind="stable").tolist():
        num_pages = int(num_shared[left])
        if num_pages == 0:
            break
        run = ending[left + 1].join(starting[left + 1], num_pages, order)
        starting[run.start] = ending[run.end] = run
    runs, start = [], 0
    while start < num_seqs:
        runs.append(starting[start])
        start = starting[start].end
    return sorted((group for run in runs for group in run.groups), key=lambda group: group.members)


def plan_shared_prefix(
    block_tables: IntArray,
    seq_lens: IntArray,
    query_lens: IntArray,
    *,
    block_size: int,
    queries_per_kv_head: int,
    device: torch.device,
) -> SharedPrefix | None:
    """The shared prefixes of a step, on ``device``, or None where they save less than they cost.

    Arguments as in ``kernels.attention``, on the host; ``query_lens`` [num_seqs] are rows of queries.
    """
    full_pages = np.where(query_lens == 1, np.maximum(seq_lens - 1, 0) // block_size, 0)
    groups = find_groups(block_tables, full_pages)
    if not pays(groups, block_size, queries_per_kv_head):
        return None
    prefix_lens = np.zeros(len(seq_lens), dtype=np.int32)
    for group in groups:
        prefix_lens[list(group.members)] = group.num_pages * block_size
    sizes = [len(group.members) for group in groups]
    members = np.array([member for group in groups for member in group.members], dtype=np.int32)
    starts = np.cumsum([0, *sizes], dtype=np.int32)
    packed = torch.from_numpy(np.concatenate([members, starts, prefix_lens])).to(device)
    parts = packed.split([len(members), len(starts), len(prefix_lens)])
    return SharedPrefix(
        members=parts[0],
        group_starts=parts[1],
        prefix_lens=parts[2],
        largest_group=max(sizes),
        max_prefix_len=int(prefix_lens.max()),
        max_own_len=int((seq_lens - prefix_lens)[query_lens == 1].max()),
    )


def pays(groups: list[PrefixGroup], block_size: int, queries_per_kv_head: int) -> bool:
    """Whether the reads saved outweigh two more launches and the parts that are written and read in between."""
    saved = sum(group.saved_pages for group in groups) * block_size
    num_members = sum(len(group.members) for group in groups)
    parts = num_members * queries_per_kv_head * PARTS_PER_MEMBER
    return saved > LAUNCH_POSITIONS + parts * POSITIONS_PER_PART
