"""`octavo inspect`: from flags to a report on stdout."""

from __future__ import annotations

import argparse
import json
import os

from engine.config import ConfigError, EngineConfig
from engine.inspection import inspect_model
from server.inspection.report import as_data, as_text


def run(parsed: argparse.Namespace) -> int:
    """Print the report. Raises ConfigError or CheckpointError."""
    if parsed.memory is not None and parsed.kv_cache_memory_bytes is not None:
        raise ConfigError("--memory: is for weights and pages, --kv-cache-memory-bytes for pages alone: choose one")
    if parsed.revision is not None and parsed.model is None:
        raise ConfigError(f"--revision {parsed.revision}: needs a MODEL, a hub id, of which to take that revision")
    EngineConfig(
        model="",
        kv_cache_dtype=parsed.kv_cache_dtype,
        block_size=parsed.block_size,
        max_model_len=parsed.max_model_len,
        kv_cache_memory_bytes=parsed.kv_cache_memory_bytes,
    ).validate()
    inspection = inspect_model(
        parsed.model,
        revision=parsed.revision,
        offline=parsed.offline,
        memory=parsed.memory,
        kv_cache_memory_bytes=parsed.kv_cache_memory_bytes,
        kv_cache_dtype=parsed.kv_cache_dtype,
        lengths=parsed.lengths,
        block_size=parsed.block_size,
        max_model_len=parsed.max_model_len,
    )
    try:
        print(json.dumps(as_data(inspection), indent=2) if parsed.json else as_text(inspection), flush=True)
    except BrokenPipeError:  # of a reader who had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0
