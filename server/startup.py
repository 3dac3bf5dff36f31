"""What a user sees while a model loads: notices, a progress bar, and the table of what came of it.

Knows words and units, not how anything is loaded. Everything goes to stderr, by way of the logs; where those are JSON
the table is one record, and there is no bar.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from engine.config import Checkpoint
from engine.log_format import LogFormat, tell
from engine.messages import EngineReady, LoadProgress

BASE_MODEL_NOTICE = (
    "This is a base model, not an instruct model: it continues text. Chat shows it a plain transcript to continue."
)


logger = logging.getLogger("octavo.server")


def say(line: str) -> None:
    """One line for the user."""
    tell(logger, line.removeprefix("octavo: "), text=line)


def announce(checkpoint: Checkpoint) -> None:
    """What the user must know of a model before it is served."""
    if checkpoint.notice is not None:
        say(checkpoint.notice)
    if checkpoint.is_demo:
        say(BASE_MODEL_NOTICE)


class LoadingBar:
    """A progress bar for the stage that is loading; nothing where stderr is no terminal, or is read by a machine."""

    def __init__(self, log_format: LogFormat = LogFormat.TEXT) -> None:
        self._disable = True if log_format is LogFormat.JSON else None  # None: where stderr is no terminal
        self._stage = ""
        self._bar: tqdm | None = None

    def update(self, progress: LoadProgress) -> None:
        if self._bar is None or progress.stage != self._stage:
            self.close()
            self._stage = progress.stage
            self._bar = tqdm(
                total=progress.total, desc=progress.stage, unit="B", unit_scale=True, leave=False, disable=self._disable
            )
        self._bar.update(progress.done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def say_started(model: str, ready: EngineReady, seconds: Mapping[str, float], total: float, url: str) -> None:
    """The server serves: the table as text, or the same as fields of one record. Arguments as of `startup_table`."""
    table = startup_table(model, ready, seconds, total, url)
    tell(logger, "serving", text=table, fields=startup_fields(model, ready, seconds, total, url))


def startup_fields(
    model: str, ready: EngineReady, seconds: Mapping[str, float], total: float, url: str
) -> dict[str, Any]:
    """What `startup_table` says, in plain numbers: bytes, pages, tokens and seconds."""
    return {
        "model": model,
        "device": ready.device,
        "threads": ready.threads,
        "dtype": ready.dtype,
        "attention": ready.attention_backend,
        "weight_bytes": ready.weight_bytes,
        "weight_form": ready.weight_form,
        "packed_weights": ready.packed_weights,
        "kv_bytes": ready.kv_bytes,
        "kv_dtype": ready.kv_dtype,
        "pages": ready.num_pages,
        "host_pages": ready.stats.host_pages_total,
        "page_bytes": ready.page_bytes,
        "block_size": ready.block_size,
        "max_model_len": ready.max_model_len,
        "max_num_seqs": ready.max_num_seqs,
        "max_num_batched_tokens": ready.max_num_batched_tokens,
        "num_speculative_tokens": ready.num_speculative_tokens,
        "startup_seconds": round(total, 3),
        "stage_seconds": {stage: round(took, 3) for stage, took in {**seconds, **ready.stage_seconds}.items()},
        "adapters": [{"name": one.name, "rank": one.rank, "bytes": one.num_bytes} for one in ready.adapters],
        "warnings": ready.warnings,
        "url": f"{url}/v1",
    }


def startup_table(model: str, ready: EngineReady, seconds: Mapping[str, float], total: float, url: str) -> str:
    """The table of a started server. ``seconds`` are this process's own stages, ``total`` is from command to ready."""
    stages = {**seconds, **ready.stage_seconds}
    host_pages = ready.stats.host_pages_total
    host_bytes = host_pages * ready.page_bytes
    host_memory = [("host memory", f"{host_bytes / 1e9:.2f} GB in {host_pages:,} pages")] if host_pages else []
    guesses = f"n-grams, at most {ready.num_speculative_tokens} tokens for a request in a step"
    speculation = [("speculation", guesses)] if ready.num_speculative_tokens else []
    packed = [("packed in", ready.packed_weights)] if ready.packed_weights else []
    shown = [f"{one.name} (rank {one.rank}, {one.num_bytes / 1e6:.1f} MB)" for one in ready.adapters]
    adapters = [("adapters", ", ".join(shown))] if shown else []
    rows = [
        ("model", model),
        ("device", f"{ready.device}, {ready.threads} {'thread' if ready.threads == 1 else 'threads'}"),
        ("dtype", ready.dtype),
        ("attention", ready.attention_backend),
        ("weights", f"{ready.weight_bytes / 1e9:.2f} GB, {ready.weight_form}"),
        *packed,
        *adapters,
        ("KV memory", f"{ready.kv_bytes / 1e9:.2f} GB in {ready.num_pages:,} pages"),
        *host_memory,
        ("page", f"{ready.block_size} tokens in {ready.kv_dtype}, {ready.page_bytes:,} bytes"),
        ("max context", f"{ready.max_model_len:,} tokens"),
        ("batch", f"{ready.max_num_seqs} requests, {ready.max_num_batched_tokens} tokens a step"),
        *speculation,
        ("start-up", f"{total:.1f} s: " + ", ".join(f"{stage} {took:.1f}" for stage, took in stages.items())),
        *(("warning", warning) for warning in ready.warnings),
        ("serving", f"{url}/v1"),
        ("page map", f"{url}/dashboard"),
    ]
    return "\n".join(f"  {name:<12} {value}" for name, value in rows)
