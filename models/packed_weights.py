"""PackedWeights: where the packed weights of a model lie: in new memory, or in the file of a start before this one.

Knows files of models by what the system says of them, and reads none. Invariant: weights come from a file only if the
model's files, the choice of forms and the code that packs are those that made it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from functools import cache
from pathlib import Path

import torch

from kernels.cpu.huge_pages import HugePageArena
from models.checkpoint import Checkpoint, CheckpointFormat
from models.packed_file import Key, PackedFile, PackedFileWriter, read_key
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
    def of(cls, checkpoint: Checkpoint, forms: WeightForms, directory: Path | None = None) -> PackedWeights:
        """Those of ``checkpoint`` in ``forms``. ``directory``: ``$OCTAVO_CACHE/packed``. Raises CheckpointError."""
        files = list(checkpoint.weight_files())
        if checkpoint.format is CheckpointFormat.SAFETENSORS:
            files.append(checkpoint.path / "config.json")
        form = forms.quantization.value
        key: Key = {"form": form, "code": _code_digest(), "files": [_identity(file) for file in files]}
        place = f"{os.path.realpath(checkpoint.path)} {form}"
        name = f"{_plain(checkpoint.path.stem)}-{hashlib.sha256(place.encode()).hexdigest()[:12]}{_SUFFIX}"
        return cls((directory or default_directory()) / name, key)

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
    def nbytes(self) -> int:
        return sum(map(len, self._taken))

    @property
    def mapped_bytes(self) -> int:
        """Memory that the system takes for file cache that it may drop, and that is in use."""
        return self.nbytes if self.are_there and self._file is not None and self._file.is_mapped else 0

    def writer(self) -> PackedFileWriter | None:
        """What keeps the weights, once all are there, for the next start; None where they need not be, or may not.

        Raises OSError where there can be no such file.
        """
        if self.are_there or self.nbytes < LEAST_BYTES:
            return None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _remove_unused(self.path)
        if self.nbytes > DISK_SHARE * shutil.disk_usage(self.path.parent).free:
            return None
        return PackedFileWriter(self.path, self._key, self._taken)


def default_directory() -> Path:
    """``$OCTAVO_CACHE/packed``, or ``~/.cache/octavo/packed``."""
    return Path(os.environ.get("OCTAVO_CACHE") or Path.home() / ".cache" / "octavo") / "packed"


def _identity(file: Path) -> list[str | int]:
    """What tells this file from all that were or will be in its place: time of change is the system's own."""
    stat = file.stat()
    return [os.path.realpath(file), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


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
    """Make room: of the files beside ``wanted``, those of models that are gone, and those that nobody starts."""
    for file in wanted.parent.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            key = read_key(file)
            is_gone = key is not None and not all(os.path.exists(one[0]) for one in key.get("files", ()))
            if file != wanted and (is_gone or time.time() - file.stat().st_mtime > UNUSED_SECONDS):
                file.unlink()
