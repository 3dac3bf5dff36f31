"""PackedFile: the packed weights of a model in a file, one after the other as they lie in memory.

A header says what they belong to, and how many bytes each of them takes. The file is mapped, not read: Linux then has
no memory to find and to clear, and two servers of one model share it. Knows nothing of weights. Invariant: a file gets
its name once all of it is on the disk, and is never written to again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from kernels.cpu.huge_pages import CACHE_LINE, HUGE_PAGE, HugePageArena, bytes_in_huge_pages, has_huge_pages

_MAGIC = b"OCTAVOPK"
_LENGTHS = struct.Struct("<8sQ")  # magic, bytes of the header
_MAX_HEADER = 64 << 20
_READ_BYTES = 8 << 20
_POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14, which Python does not name yet

Key = dict[str, Any]  # what weights belong to, as JSON


class PackedFile:
    """The ``pieces`` of a file, each uint8 and nothing to write to; ``is_mapped``: they are the system's file cache."""

    def __init__(self, sizes: Sequence[int], memory: torch.Tensor, *, is_mapped: bool) -> None:
        self.is_mapped = is_mapped
        self.pieces = [memory[start : start + size] for start, size in zip(_starts(sizes), sizes, strict=True)]

    @classmethod
    def open(cls, path: Path, key: Key) -> PackedFile | None:
        """The file of ``key`` at ``path``, all of it in memory; None where there is none, or another's, or half."""
        try:
            with _opened(path) as file:
                length, header = _read_header(file)
                sizes = header["sizes"]
                if header["key"] != key or not all(type(size) is int and size >= 0 for size in sizes):
                    return None
                total = _end(sizes)
                if not total or os.fstat(file).st_size != length + total:
                    return None
                memory = mmap.mmap(file, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
                pieces = torch.frombuffer(memory, dtype=torch.uint8)[length:]
                _fetch(memory)
                is_mapped = bytes_in_huge_pages(pieces) >= total // 2 or total < HUGE_PAGE or not has_huge_pages()
                if not is_mapped:  # read over and over from small pages, weights are slower for good
                    pieces = _read(file, length, total)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        with contextlib.suppress(OSError):  # of who may only read
            os.utime(path)  # it was of use
        return cls(sizes, pieces, is_mapped=is_mapped)


class PackedFileWriter:
    """Writes ``pieces`` to ``path``, a portion at a time, beside other work."""

    def __init__(self, path: Path, key: Key, pieces: Sequence[torch.Tensor], portion: int = HUGE_PAGE) -> None:
        """Raises OSError where there can be no such file. ``portion`` in bytes."""
        self._path = path
        header = json.dumps({"key": key, "sizes": [len(piece) for piece in pieces]}).encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        # without a name until it is whole: whatever ends this process, nothing of it stays
        self._file = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        self._portions = _portions(_image(header, pieces), portion)

    def advance(self) -> bool:
        """Bring one more portion to the disk; whether there is more to do. Raises OSError, and then leaves nothing."""
        if self._file < 0:
            return False
        try:
            portion = next(self._portions, None)
            if portion is not None:
                _write(self._file, portion)
                os.fdatasync(self._file)
                return True
            self._name()
        except OSError:
            self.close()
            raise
        self.close()
        return False

    def close(self) -> None:
        """Let go of the file, which is gone where it was not finished."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._portions = -1, iter(())

    def _name(self) -> None:
        os.fsync(self._file)
        link = self._path.with_name(f".{self._path.name}")
        with contextlib.suppress(FileNotFoundError):  # of a process that was killed right here, or writes the same
            link.unlink()
        # a directory, though it plays no part: os.link follows no link without one
        os.link(f"/proc/self/fd/{self._file}", link, src_dir_fd=self._file, follow_symlinks=True)
        try:
            with contextlib.suppress(FileNotFoundError):  # another has given it the name, in the moment since
                link.replace(self._path)
        except OSError:
            link.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A regular file of this user. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # no pipe is waited for
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            raise OSError(errno.EACCES, "not a file to trust")
        yield file
    finally:
        os.close(file)


def _read_header(file: int) -> tuple[int, dict[str, Any]]:
    """Where the pieces begin, and the header. Raises ValueError where it is no such file."""
    try:
        magic, length = _LENGTHS.unpack(os.pread(file, _LENGTHS.size, 0))
    except struct.error:
        raise ValueError("too short") from None
    if magic != _MAGIC or length > _MAX_HEADER:
        raise ValueError("another kind of file")
    try:
        header = json.loads(os.pread(file, length, _LENGTHS.size))
    except RecursionError:
        raise ValueError("a header of nothing but brackets") from None
    if not isinstance(header, dict):
        raise ValueError("no header")
    return _padded(_LENGTHS.size + length, mmap.PAGESIZE), header


def _fetch(memory: mmap.mmap) -> None:
    """Have all of a file in memory, rather than some of it in the middle of a step."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)  # for what is not in memory yet
    with contextlib.suppress(OSError):  # of an older kernel: a step waits
        memory.madvise(_POPULATE_READ)


def _read(file: int, start: int, size: int) -> torch.Tensor:
    """A copy in huge pages."""
    copy = HugePageArena().take(size)
    done = 0
    while done < size:
        num_bytes = os.preadv(file, [copy[done : done + _READ_BYTES].numpy().data], start + done)
        if num_bytes == 0:
            raise OSError("the file was cut while it was read")
        done += num_bytes
    return copy


def _padded(size: int, alignment: int = CACHE_LINE) -> int:
    return -(-size // alignment) * alignment


def _starts(sizes: Sequence[int]) -> list[int]:
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + _padded(size))
    return starts[:-1]


def _end(sizes: Sequence[int]) -> int:
    return sum(map(_padded, sizes))


def _image(header: bytes, pieces: Sequence[torch.Tensor]) -> Iterator[memoryview]:
    """The bytes of the file, from its first."""
    head = _LENGTHS.pack(_MAGIC, len(header)) + header
    yield memoryview(head.ljust(_padded(len(head), mmap.PAGESIZE), b"\0"))
    for piece in pieces:
        yield piece.numpy().data
        yield memoryview(bytes(_padded(len(piece)) - len(piece)))


def _portions(image: Iterator[memoryview], size: int) -> Iterator[bytearray]:
    """The same in portions of ``size``, but for the last; those of huge pages get such in the system's file cache."""
    portion = bytearray()
    for part in image:
        while len(part):
            taken = part[: size - len(portion)]
            portion += taken
            part = part[len(taken) :]
            if len(portion) == size:
                yield portion
                portion = bytearray()
    if portion:
        yield portion


def _write(file: int, portion: bytearray) -> None:
    rest = memoryview(portion)
    while rest:
        rest = rest[os.write(file, rest) :]
