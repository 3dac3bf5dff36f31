"""Real tensors: after any shares, copies and swaps, reading through the block table gives what was written.

A "device" pool and a "host" pool, both in memory. Every position of every layer of a sequence has keys and values of
its own, drawn from the sequence's tokens up to it, so that sequences share contents exactly where they may share pages.
"""

from __future__ import annotations

import functools
import random
import zlib
from dataclasses import dataclass

import pytest
import torch

from block_manager.groups import layers_per_page, plan_groups
from block_manager.hashing import BlockHashes
from block_manager.kv_cache import KVCache
from block_manager.manager import BlockManager
from block_manager.transfers import TransferKind

HEADS, DIM = 2, 4


@functools.cache
def drawn(seed: int) -> torch.Tensor:
    """A key and a value [2, HEADS, DIM]."""
    return torch.rand(2, HEADS, DIM, generator=torch.Generator().manual_seed(seed))


@dataclass
class Sequence:
    token_ids: list[int]
    hashes: BlockHashes
    computed: int = 0


class Storage:
    """A block manager with the tensors behind it."""

    def __init__(self, windows: list[int | None], num_pages: int, host_pages: int, block_size: int) -> None:
        groups = plan_groups(windows)
        self.blocks = BlockManager(groups, num_pages, block_size, num_host_pages=host_pages, max_rollback=3)
        cpu = torch.device("cpu")
        self.device = KVCache(groups, num_pages, block_size, HEADS, DIM, torch.float32, cpu)
        self.host = KVCache(groups, host_pages, block_size, HEADS, DIM, torch.float32, cpu)
        self.layers = range(len(windows))
        self.moved: set[TransferKind] = set()
        for tensor in (*self.device.tensors(), *self.host.tensors()):
            tensor.fill_(float("nan"))

    def rows(self, layer: int, token_ids: list[int], positions: range) -> torch.Tensor:
        """Keys and values [2, len(positions), HEADS, DIM] that ``layer`` computes there."""
        seeds = [zlib.crc32(bytes([layer, *token_ids[: position + 1]])) for position in positions]
        return torch.stack([drawn(seed) for seed in seeds], dim=1)

    def carry_out_transfers(self) -> None:
        for transfer in self.blocks.take_transfers():
            self.moved.add(transfer.kind)
            target = self.host if transfer.kind is TransferKind.OUT else self.device
            source = self.host if transfer.kind is TransferKind.IN else self.device
            target.copy_from(source, transfer.sources, transfer.targets)

    def pages(self, name: str, layer: int, positions: range) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Page and offset of each position, and the layer's slot in those pages."""
        group, column, slot = self.device.place(layer)
        table = self.blocks.block_tables(name)[group]
        size = self.blocks.block_size
        pages = torch.tensor([table[position // size][column] for position in positions])
        return pages, torch.tensor([position % size for position in positions]), slot

    def step(self, name: str, sequence: Sequence, end: int) -> None:
        """Carry transfers out, then write positions up to ``end``."""
        self.carry_out_transfers()
        positions = range(sequence.computed, end)
        for layer in self.layers if positions else ():
            keys, values = self.rows(layer, sequence.token_ids, positions)
            pages, offsets, slot = self.pages(name, layer, positions)
            self.device.key_pages[slot][pages, :, offsets] = keys
            self.device.value_pages[slot][pages, :, offsets] = values
        sequence.computed = end
        self.blocks.commit(name, end, sequence.hashes)

    def check(self, name: str, sequence: Sequence) -> None:
        """Gather what the next position sees, in every layer."""
        for layer in self.layers:
            window = self.blocks.groups[self.device.place(layer)[0]].window
            first = 0 if window is None else max(0, sequence.computed - window + 1)
            positions = range(first, sequence.computed)
            if positions:
                pages, offsets, slot = self.pages(name, layer, positions)
                keys, values = self.rows(layer, sequence.token_ids, positions)
                assert torch.equal(self.device.key_pages[slot][pages, :, offsets], keys)
                assert torch.equal(self.device.value_pages[slot][pages, :, offsets], values)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("windows", [[None], [None, 6], [5, 5, None, 5, 9]], ids=str)
def test_gathering_through_the_table_gives_what_was_written(windows: list[int | None], seed: int) -> None:
    source = random.Random(seed)
    block_size = source.choice([2, 4, 8])
    columns = sum(group.pages_per_block for group in plan_groups(windows))
    storage = Storage(windows, columns * source.randrange(10, 18), columns * 12, block_size)
    blocks = storage.blocks
    running: dict[str, Sequence] = {}
    away: dict[str, Sequence] = {}

    def extend(sequence: Sequence, tail: int) -> None:
        sequence.token_ids += [source.randrange(2) for _ in range(tail)]
        sequence.hashes.extend(sequence.token_ids)

    def admit() -> None:
        sequence = Sequence([7] * source.choice([0, 4, 8, 16]), BlockHashes(block_size))
        extend(sequence, source.randrange(1, 6))
        match = blocks.match_prefix(sequence.hashes, len(sequence.token_ids))
        name = f"s{number}"
        if blocks.admit(name, match, len(sequence.token_ids)):
            sequence.computed = match.num_tokens
            running[name] = sequence
            storage.step(name, sequence, len(sequence.token_ids))

    for number in range(300):
        action = source.choice(["admit", "admit", "grow", "grow", "grow", "fork", "rollback", "out", "in", "free"])
        name = source.choice(sorted(running)) if running else ""
        if action == "admit" or (not running and action != "in"):
            admit()
        elif action == "grow":
            sequence = running[name]
            if sequence.computed == len(sequence.token_ids):
                extend(sequence, source.randrange(1, 4))
            if blocks.grow(name, len(sequence.token_ids)):
                storage.step(name, sequence, len(sequence.token_ids))
        elif action == "fork" and len(running) < 12:
            parent = running[name]
            blocks.fork(name, f"s{number}")
            running[f"s{number}"] = Sequence(list(parent.token_ids), parent.hashes.fork(), parent.computed)
        elif action == "rollback":
            sequence = running[name]
            target = max(0, sequence.computed - source.randrange(1, 4))
            try:
                blocks.rollback(name, target)
            except ValueError:
                continue  # into the prefix it was admitted with
            del sequence.token_ids[target:]
            sequence.hashes.truncate(target)
            sequence.computed = target
            extend(sequence, 2)
        elif action == "out" and blocks.swap_out(name) is not None:
            away[name] = running.pop(name)
        elif action == "in" and away:
            name = source.choice(sorted(away))
            while not blocks.swap_in(name, away[name].computed):
                blocks.free(running.popitem()[0])
            running[name] = away.pop(name)
        elif action == "free" and running:
            blocks.free(name)
            del running[name]
        storage.carry_out_transfers()
        for name, sequence in running.items():
            storage.check(name, sequence)
    assert blocks.audit() == []
    assert storage.moved == set(TransferKind)


def test_pages_move_with_all_their_layers_and_no_others_change() -> None:
    groups = plan_groups([None, None, 8, 8])
    caches = [KVCache(groups, 6, 4, HEADS, DIM, torch.bfloat16, torch.device("cpu")) for _ in range(2)]
    for cache in caches:
        for tensor in cache.tensors():
            tensor.copy_(torch.rand(tensor.shape))
    before = [[tensor.clone() for tensor in cache.tensors()] for cache in caches]
    assert len(before[0]) == 2 * layers_per_page(groups)
    caches[1].copy_from(caches[0], (1, 5), (4, 2))
    for tensor, mine, theirs in zip(caches[1].tensors(), before[1], before[0], strict=True):
        assert torch.equal(tensor[[4, 2]], theirs[[1, 5]])
        assert torch.equal(tensor[[0, 1, 3, 5, 6]], mine[[0, 1, 3, 5, 6]])
    assert all(torch.equal(a, b) for a, b in zip(caches[0].tensors(), before[0], strict=True))
    caches[0].copy((2, 3), (6, 1))
    for tensor, old in zip(caches[0].tensors(), before[0], strict=True):
        assert torch.equal(tensor[[6, 1]], old[[2, 3]])
        assert torch.equal(tensor[[0, 2, 3, 4, 5]], old[[0, 2, 3, 4, 5]])
