"""What an engine refuses to start with. Knows nothing else, so that every module may raise it."""

from __future__ import annotations


class ConfigError(Exception):
    """A setting that cannot work; the message names it, its value and what would work."""
