"""MappedFile: the bytes of a file in memory for as long as they are looked at.

Knows nothing of formats. What is touched of the map stays in this process's memory until it is released: the system
would drop it only when memory runs short, and a loader would seem to hold the checkpoint beside the model made of it.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import weakref
from pathlib import Path

import numpy as np
import numpy.typing as npt

_SAMPLES = 256
_SAMPLE_BYTES = 4096
_SECOND = 1_000_000_000
_WINDOW = 2 << 20  # bytes of a file: Linux maps as much as this around a page that is touched, if it has it at hand


class MappedFile:
    """A file that is not empty, mapped whole: ``buffer``, and ``bytes`` over the same. Raises OSError and ValueError.

    Pages are private and may be written to, since torch warns of memory that may not; the file stays as it is.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        weakref.finalize(self, os.close, self._descriptor)
        self.buffer = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_COPY)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self.buffer, np.uint8)

    def __len__(self) -> int:
        return len(self.bytes)

    def identity(self) -> list[int | str]:
        """What tells this file from others that were or will be in its place: of the open file, not of its path.

        Its size, the times of its last changes, and a digest of samples of its bytes; of all of them where the times
        are whole seconds, as those of images are, in which they may be one constant. Raises OSError.
        """
        stat, digest = os.fstat(self._descriptor), hashlib.sha256()
        is_timeless = stat.st_ctime_ns % _SECOND == 0
        step = _SAMPLE_BYTES if is_timeless else max(_SAMPLE_BYTES, stat.st_size // _SAMPLES)
        for start in range(0, stat.st_size, step):
            digest.update(os.pread(self._descriptor, _SAMPLE_BYTES, start))
        return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, digest.hexdigest()]

    def read(self, part: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """A copy of ``part``, a contiguous view of ``bytes``, that is read past the map. Raises OSError."""
        start, copy = part.ctypes.data - self.bytes.ctypes.data, np.empty(part.nbytes, np.uint8)
        done = 0
        while done < part.nbytes:
            num_bytes = os.preadv(self._descriptor, [copy.data[done:]], start + done)
            if num_bytes == 0:
                raise OSError(f"{self.path} was cut while it was read")
            done += num_bytes
        return copy

    def release(self, part: npt.NDArray[np.generic]) -> None:
        """Give back the memory of ``part``, a contiguous view of ``bytes``; touched again, it is read again."""
        base = self.bytes.ctypes.data
        start, end = part.ctypes.data - base, part.ctypes.data - base + part.nbytes
        if not 0 <= start <= end <= len(self):
            raise ValueError(f"not a part of {self.path}")
        first = start - start % _WINDOW  # whole windows: reading what is beside the part has mapped some of it again
        last = min(len(self), end + -end % _WINDOW)
        if hasattr(mmap, "MADV_DONTNEED"):
            self.buffer.madvise(mmap.MADV_DONTNEED, first, last - first)
