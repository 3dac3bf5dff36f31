"""Chained block hashes: equal hash means equal tokens from position 0 on, under equal salt and adapter.

    content[i] = sha256(tag "block" | content[i - 1] | token ids of block i)
    hash[i]    = namespace | content[i],   namespace = sha256(tag "namespace" | salt | adapter)

Every input carries its kind and length, so that no two kinds can collide, and sha256 makes a false hit (one tenant
reading another's pages) infeasible rather than unlikely. The content part is the same in every namespace, so that a
miss can be told apart: the tokens were never seen, or only under another salt. Hashes do not name a layer group: each
group keeps its own map.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

_TOKEN_ID = "I"  # 32 bits wherever CPython runs
_CONTENT_BYTES = hashlib.sha256().digest_size


def _digest(kind: bytes, *parts: bytes) -> bytes:
    hasher = hashlib.sha256(kind)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


_ROOT = _digest(b"root")


def content_of(block_hash: bytes) -> bytes:
    """The part of a block hash that depends on tokens alone."""
    return block_hash[-_CONTENT_BYTES:]


class BlockHashes:
    """The growing chain of one sequence; only full blocks have a hash."""

    def __init__(self, block_size: int, salt: str = "", adapter: str = "") -> None:
        self._block_size = block_size
        self._namespace = _digest(b"namespace", salt.encode(), adapter.encode())
        self._contents: list[bytes] = []
        self._hashes: list[bytes] = []

    def __len__(self) -> int:
        return len(self._hashes)

    def __getitem__(self, index: int) -> bytes:
        return self._hashes[index]

    def extend(self, token_ids: Sequence[int]) -> None:
        """Hash the blocks that ``token_ids``, all tokens of the sequence so far, have filled since the last call."""
        size = self._block_size
        for index in range(len(self._contents), len(token_ids) // size):
            parent = self._contents[-1] if self._contents else _ROOT
            block = array(_TOKEN_ID, token_ids[index * size : (index + 1) * size])
            content = _digest(b"block", parent, block.tobytes())
            self._contents.append(content)
            self._hashes.append(self._namespace + content)

    def truncate(self, num_tokens: int) -> None:
        """Forget the blocks that ``num_tokens`` tokens no longer fill."""
        del self._contents[num_tokens // self._block_size :]
        del self._hashes[num_tokens // self._block_size :]

    def fork(self) -> BlockHashes:
        """A chain of its own with the same tokens so far."""
        copy = BlockHashes(self._block_size)
        copy._namespace = self._namespace
        copy._contents, copy._hashes = list(self._contents), list(self._hashes)
        return copy
