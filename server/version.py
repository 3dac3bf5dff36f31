"""The version of the installed distribution."""

from __future__ import annotations

from importlib import metadata


def octavo_version() -> str:
    """Version of the installed `octavo` distribution; "0+unknown" in a source tree that was never installed."""
    try:
        return metadata.version("octavo")
    except metadata.PackageNotFoundError:
        return "0+unknown"
