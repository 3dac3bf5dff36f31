"""Keeps the merge list derived from a SentencePiece vocabulary on disk, so that it is derived once per machine.

One file per vocabulary: a SHA-256 digest of the payload, then the payload, pairs of token ids as native int32. Files
are replaced atomically, and one whose digest does not fit counts as absent. Knows nothing of tokenizers; the caller's
key says what the merges belong to. A cache that cannot be written costs time, never correctness.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from array import array
from pathlib import Path
from typing import Final

_DIGEST_BYTES: Final = hashlib.sha256().digest_size


def default_cache_directory() -> Path:
    """``$OCTAVO_CACHE/tokenizers``, or ``~/.cache/octavo/tokenizers``."""
    root = os.environ.get("OCTAVO_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "octavo") / "tokenizers"


class MergeCache:
    """A directory of merge lists, each under the key of its vocabulary."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, key: str) -> Path:
        """Where the merges of ``key`` lie once stored."""
        return self.directory / f"{key}.merges"

    def load(self, key: str) -> array[int] | None:
        """The stored id pairs, flat (left, right, left, right, ...); None if absent, cut short or altered."""
        try:
            content = self.path(key).read_bytes()
        except OSError:
            return None
        digest, payload = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(payload).digest() != digest:
            return None
        pairs = array("i")
        pairs.frombytes(payload)
        return pairs

    def store(self, key: str, pairs: array[int]) -> None:
        """Keep ``pairs`` under ``key``; a directory that cannot be written is left alone."""
        payload = pairs.tobytes()
        with contextlib.suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=self.directory)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(hashlib.sha256(payload).digest())
                    file.write(payload)
                os.replace(temporary, self.path(key))
            except OSError:
                os.unlink(temporary)
                raise
