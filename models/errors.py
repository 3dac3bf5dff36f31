"""CheckpointError: a checkpoint that cannot be found, read or served."""

from __future__ import annotations


class CheckpointError(Exception):
    """The message is one sentence for the user: what is wrong, with which file or value, and what to do if we know."""
