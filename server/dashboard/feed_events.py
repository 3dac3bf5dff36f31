"""The events of the page map's feed, but for the pages themselves: what the engine says, as JSON.

Knows the messages of the engine and the fields that the page reads. Never tells of prompts, answers or keys.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import orjson

from engine.messages import EngineReady, EngineStats
from engine.page_messages import PagesRead, SequenceRow
from server.dashboard.page_cells import CHUNK_PAGES
from server.http.sse import named_frame
from server.request_registry import RequestRegistry


def layout_event(ready: EngineReady, read: PagesRead, *, model: str, version: str, tick_seconds: float) -> bytes:
    """What holds for as long as one engine process lives."""
    layout = {
        "model": model,
        "version": version,
        "num_pages": ready.num_pages,
        "block_size": ready.block_size,
        "page_bytes": ready.page_bytes,
        "groups": read.group_names,
        "chunk": CHUNK_PAGES,
        "max_model_len": ready.max_model_len,
        "device": ready.device,
        "tick_seconds": tick_seconds,
    }
    return named_frame("layout", orjson.dumps(layout))


def requests_event(read: PagesRead, registry: RequestRegistry) -> bytes:
    """The sequences that run, and the first of those that wait."""
    rows = [_sequence(row, registry) for row in read.sequences]
    return named_frame("requests", orjson.dumps({"total": read.num_sequences, "sequences": rows}))


def _sequence(row: SequenceRow, registry: RequestRegistry) -> dict[str, object]:
    return {
        "handle": row.handle,
        "id": row.request_id,
        "request_id": registry.shown_id(row.request_id),
        "tenant": row.tenant,
        "status": row.status.value,
        "age_seconds": round(row.seconds_since_arrival, 3),
        "prompt_tokens": row.num_prompt_tokens,
        "computed_tokens": row.num_computed_tokens,
        "output_tokens": row.num_output_tokens,
        "pages": row.held_pages,
        "preemptions": row.num_preemptions,
        "wait_reason": row.wait_reason,
        "position": row.position,
    }


def stats_event(pages: Mapping[str, int], stats: EngineStats) -> bytes:
    """Queues and counters; ``pages`` are counted in the cells, so that both say the same to the last page."""
    held_slots = sum(group.held_slots for group in stats.groups)
    wasted_slots = sum(group.wasted_slots for group in stats.groups)
    body = {
        "time": round(time.time(), 3),
        "pages": dict(pages),
        "groups": [
            {
                "name": group.name,
                "cached": group.cached,
                "held": group.held,
                "shared": group.shared,
                "wasted_ratio": _ratio(group.wasted_slots, group.held_slots),
            }
            for group in stats.groups
        ],
        "wasted_ratio": _ratio(wasted_slots, held_slots),
        "host": {
            "total": stats.host_pages_total,
            "free": stats.host_pages_free,
            "swapped": stats.host_pages_swapped,
        },
        "running": stats.running,
        "waiting": stats.waiting,
        "waiting_by_reason": stats.waiting_by_reason,
        "queued_tokens": stats.queued_tokens,
        "exhaustion_seconds": stats.exhaustion_seconds,
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_prompt_tokens,
        "recomputed_tokens": stats.recomputed_tokens,
        "generation_tokens": stats.generation_tokens,
        "preemptions": stats.num_preemptions,
        "evicted_pages": sum(group.evicted for group in stats.groups),
        "steps": stats.steps,
        "step_seconds": stats.step_seconds,
        "engine": "ready",
    }
    return named_frame("stats", orjson.dumps(body))


def engine_event(state: str) -> bytes:
    """Instead of everything else, while the engine does not answer."""
    return named_frame("engine", orjson.dumps({"state": state}))


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0
