"""The naive model of random calls on a BlockManager: every sequence's tokens, and every page's contents."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType

import pytest

from block_manager.hashing import BlockHashes
from block_manager.transfers import Transfer, TransferKind

Identity = tuple[object, ...]


@dataclass
class Sequence:
    """``computed`` positions are written; those below ``writable`` may be, without another `grow`."""

    token_ids: list[int]
    hashes: BlockHashes
    salt: str
    matched: int
    computed: int
    writable: int
    num_blocks: int
    first_held: list[int]
    seen: list[dict[int, tuple[int, ...]]] = field(default_factory=list)

    def identity(self, group: int, column: int, position: int) -> Identity:
        return (group, column, self.salt, tuple(self.token_ids[: position + 1]))

    def continue_with(self, num_tokens: int, tail: list[int]) -> None:
        """Other tokens from ``num_tokens`` on."""
        self.token_ids = self.token_ids[:num_tokens] + tail
        self.hashes.truncate(num_tokens)
        self.hashes.extend(self.token_ids)


class Contents:
    """(page, offset) -> what was written there last, on device and host."""

    def __init__(self, block_size: int, carried_out: Counter[TransferKind]) -> None:
        self.device: dict[tuple[int, int], Identity] = {}
        self.host: dict[tuple[int, int], Identity] = {}
        self.carried_out = carried_out
        self._block_size = block_size

    def carry_out(self, transfers: Iterable[Transfer]) -> None:
        """Move contents, one transfer after the other."""
        ends = {
            TransferKind.COPY: (self.device, self.device),
            TransferKind.OUT: (self.device, self.host),
            TransferKind.IN: (self.host, self.device),
        }
        for transfer in transfers:
            self.carried_out[transfer.kind] += 1
            source, target = ends[transfer.kind]
            assert len(set(transfer.targets)) == len(transfer.targets)
            assert source is not target or not set(transfer.sources) & set(transfer.targets)
            for old, new in zip(transfer.sources, transfer.targets, strict=True):
                for offset in range(self._block_size):
                    target.pop((new, offset), None)
                    if (old, offset) in source:
                        target[new, offset] = source[old, offset]


@pytest.fixture(scope="session")
def naive_model() -> ModuleType:
    """This module, for tests that cannot import it."""
    return sys.modules[__name__]
