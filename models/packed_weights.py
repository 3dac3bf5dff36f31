"""PackedWeights: where the packed weights of a model lie: in new memory, or in the file of a start before this one.

Invariant: weights come from a file only if the model's own files, its description, the choice of forms and the code
that packs are those that made it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import time
from functools import cache
from pathlib import Path

import torch

from kernels.cpu.huge_pages import HugePageArena
from models.cache_directory import cache_directory
from models.checkpoint import Checkpoint
from models.packed_file import Key, PackedFile, PackedFileWriter
from models.spec import ModelSpec
from models.weight_forms import WeightForms

LEAST_BYTES = 16 << 20  # fewer are packed before anybody notices
DISK_SHARE = 0.1  # of what the disk has free
UNUSED_SECONDS = 30 * 86_400
_SUFFIX = ".packed"
_ROOT = Path(__file__).resolve().parent.parent
_CODE = ("models", "kernels")  # packages that decide what packed weights look like
_SUFFIXES_OF_CODE = (".py", ".so")


class PackedWeights:
    """Memory for the matrices of one model, in the order in which they are made: ``kernels.products.WeightMemory``."""

    def __init__(self, path: Path, key: Key) -> None:
        """``path``: where the weights of ``key`` are kept, or would be."""
        self.path = path
        self._key = key
        self._file = PackedFile.open(path, key)
        self._arena = HugePageArena()
        self._taken: list[torch.Tensor] = []
        self._matches = self._file is not None

    @classmethod
    def of(cls, checkpoint: Checkpoint, spec: ModelSpec, forms: WeightForms, directory: Path) -> PackedWeights:
        """Those of ``checkpoint`` in ``forms``, kept in ``directory``. Raises CheckpointError and OSError.

        They belong to the files that ``checkpoint`` has open, whatever is at their paths by now.
        """
        form = forms.quantization.value
        key: Key = {
            "form": form,
            "code": _code_digest(),
            "model": _digest(repr(spec)),
            "files": [file.identity() for file in checkpoint.mapped_files()],
        }
        place = _digest(f"{os.path.realpath(checkpoint.path)} {form} {os.geteuid()}")  # users share no files
        return cls(directory / f"{_plain(checkpoint.path.stem)}-{place[:12]}{_SUFFIX}", key)

    def take(self, nbytes: int) -> torch.Tensor:
        """Uint8 [nbytes] for the next matrix: with its weights, or not initialised."""
        place = len(self._taken)
        pieces = [] if self._file is None else self._file.pieces
        self._matches = self._matches and place < len(pieces) and len(pieces[place]) == nbytes
        self._taken.append(pieces[place] if self._matches else self._arena.take(nbytes))
        return self._taken[-1]

    @property
    def are_there(self) -> bool:
        """Whether all matrices that were made have their weights, from the file."""
        return self._file is not None and self._matches and len(self._taken) == len(self._file.pieces)

    @property
    def shown_path(self) -> str:
        """The path, for people: a name of a file may be no text."""
        return os.fsencode(self.path).decode(errors="replace")

    @property
    def nbytes(self) -> int:
        return sum(map(len, self._taken))

    @property
    def mapped_bytes(self) -> int:
        """Memory that the system takes for file cache that it may drop, and that is in use."""
        return self.nbytes if self.are_there and self._file is not None and self._file.is_mapped else 0

    @property
    def should_be_kept(self) -> bool:
        """Whether the next start would be faster for a file of them."""
        return not self.are_there and self.nbytes >= LEAST_BYTES

    def writer(self) -> PackedFileWriter:
        """What writes the file, once all matrices are filled. Raises OSError where there can be none."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _remove_unused(self.path)
        if self.nbytes > DISK_SHARE * shutil.disk_usage(self.path.parent).free:
            raise OSError(errno.ENOSPC, "they would take more than a tenth of what the disk has free")
        return PackedFileWriter(self.path, self._key, self._taken)


def default_directory() -> Path:
    """``$OCTAVO_CACHE/packed``, or ``~/.cache/octavo/packed``. Raises RuntimeError for a user without a home."""
    return cache_directory() / "packed"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


@cache
def _code_digest() -> str:
    digest = hashlib.sha256()
    paths = [path for package in _CODE for path in (_ROOT / package).rglob("*")]
    for file in sorted(path for path in paths if path.suffix in _SUFFIXES_OF_CODE):
        digest.update(f"{file.relative_to(_ROOT)} {file.stat().st_size}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _plain(name: str) -> str:
    """A part of a file's name on any system."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:80]


def _remove_unused(wanted: Path) -> None:
    """Make room: of the files beside ``wanted``, those that no start has used for long."""
    for file in wanted.parent.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            if file != wanted and time.time() - file.lstat().st_mtime > UNUSED_SECONDS:
                file.unlink()
