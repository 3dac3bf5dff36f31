"""Where Octavo keeps what it has made of files, for this user."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """``$OCTAVO_CACHE``, or ``~/.cache/octavo``. Raises RuntimeError for a user without a home."""
    return Path(os.environ.get("OCTAVO_CACHE") or Path.home() / ".cache" / "octavo")
