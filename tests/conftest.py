"""Checkpoints that tests of every package share: two tiny random ones, made on the fly, and the demo model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def default_gguf() -> Path:
    """The demo model's GGUF file."""
    from models.checkpoint import resolve_checkpoint

    return resolve_checkpoint(None).path
