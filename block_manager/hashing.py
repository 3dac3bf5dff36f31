"""Chained block hashes: equal hash means equal tokens from position 0 on, under equal salt.

    root      = sha256(tag "root"  | salt)
    hash[i]   = sha256(tag "block" | hash[i - 1] | token ids of block i)

Every input carries its kind and length, so that no two kinds can collide, and sha256 makes a false hit (one tenant
reading another's pages) infeasible rather than unlikely. Hashes do not name a layer group: each group keeps its own
map.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

_TOKEN_ID = "I"  # 32 bits wherever CPython runs


def _digest(kind: bytes, *parts: bytes) -> bytes:
    hasher = hashlib.sha256(kind)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


class BlockHashes:
    """The growing chain of one sequence; only full blocks have a hash."""

    def __init__(self, block_size: int, salt: str = "") -> None:
        self._block_size = block_size
        self._root = _digest(b"root", salt.encode())
        self._hashes: list[bytes] = []

    def __len__(self) -> int:
        return len(self._hashes)

    def __getitem__(self, index: int) -> bytes:
        return self._hashes[index]

    def extend(self, token_ids: Sequence[int]) -> None:
        """Hash the blocks that ``token_ids``, all tokens of the sequence so far, have filled since the last call."""
        size = self._block_size
        for index in range(len(self._hashes), len(token_ids) // size):
            parent = self._hashes[-1] if self._hashes else self._root
            block = array(_TOKEN_ID, token_ids[index * size : (index + 1) * size])
            self._hashes.append(_digest(b"block", parent, block.tobytes()))
