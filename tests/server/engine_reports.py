"""What an engine says of itself, for tests that only care for some of it: each function's changes, and plausible rest.

An engine of 20 pages with a context of 512, whose tokens are bytes, and log probabilities that are the same everywhere.
"""

from __future__ import annotations

from typing import Any

from engine.histogram import Histogram
from engine.messages import (
    STEP_DURATION_BOUNDS,
    STEP_PARTS,
    STEP_SEQUENCES_BOUNDS,
    STEP_TOKENS_BOUNDS,
    EngineReady,
    EngineStats,
    GroupUsage,
    Ledger,
)
from engine.page_messages import PagesRead
from engine.sampling_params import TokenLogprobs
from server.text.token_spelling import BYTE_LEVEL_ALPHABET

END = 256  # the EOS token, after one token for each byte
VOCAB_SIZE = 260
HIDDEN_SIZE = 4
CONTEXT = 512
NUM_PAGES = 20  # of 16 tokens, so 319 or so tokens of one sequence

BYTE_IDS = {byte: token_id for token_id, byte in enumerate(BYTE_LEVEL_ALPHABET.values())}
LIKELY = dict(
    zip(
        [BYTE_IDS[byte] for byte in b"e ta\xf0\x9f"],
        (-0.6931471824645996, -1.5, -2.25, -3.125, -4.0625, -5.0),
        strict=True,
    )
)
UNLIKELY = -9.210340499877930


def make_group(name: str, **changes: int) -> GroupUsage:
    """Pages of a layer group, 1,024 bytes each; what is not given is 0."""
    fields = dict.fromkeys(("cached", "held", "shared", "evicted", "held_slots", "wasted_slots"), 0) | changes
    return GroupUsage(name=name, bytes_held=1024 * fields["held"], **fields)


def make_stats(**changes: Any) -> EngineStats:
    fields: dict[str, Any] = {
        "pages_total": NUM_PAGES,
        "pages_free": NUM_PAGES,
        "page_bytes": 1024,
        "groups": [make_group("full")],
        "oldest_cached_seconds": 0.0,
        "host_pages_total": 0,
        "host_pages_free": 0,
        "host_pages_swapped": 0,
        "running": 0,
        "waiting": 0,
        "waiting_by_reason": {},
        "wanted_pages": 0,
        "exhaustion_seconds": None,
        "queued_tokens": 0,
        "longest_wait_seconds": 0.0,
        "preemptions": [],
        "refusals": {},
        "overtakes": 0,
        "rotations": 0,
        "prompt_tokens": 0,
        "cached_prompt_tokens": 0,
        "missed_prompt_tokens": {},
        "recomputed_tokens": 0,
        "generation_tokens": 0,
        "drafts": 0,
        "draft_tokens": 0,
        "accepted_draft_tokens": 0,
        "page_seconds": 0.0,
        "tenant_page_seconds": {},
        "steps": 0,
        "step_seconds": 0.0,
        "step_part_seconds": dict.fromkeys(STEP_PARTS, 0.0),
        "step_durations": Histogram.empty(STEP_DURATION_BOUNDS),
        "step_tokens": Histogram.empty(STEP_TOKENS_BOUNDS),
        "step_sequences": Histogram.empty(STEP_SEQUENCES_BOUNDS),
        "audit_failures": 0,
    }
    return EngineStats(**(fields | changes))


def make_ledger(**changes: Any) -> Ledger:
    """What a sequence cost that ran for a second, with nothing remarkable; ``changes`` say what else."""
    fields: dict[str, Any] = {
        "queue_seconds": 0.125,
        "prefill_seconds": 0.25,
        "decode_seconds": 0.625,
        "peak_pages": 1,
        "page_seconds": 0.5,
        "cached_tokens": 0,
        "recomputed_tokens": 0,
        "rotations": 0,
        "draft_tokens": 0,
        "accepted_draft_tokens": 0,
        "preemptions": [],
    }
    return Ledger(**(fields | changes))


def make_pages_read(num_pages: int = NUM_PAGES, **changes: Any) -> PagesRead:
    """Pages that are all free, and no sequences; ``changes`` say what else."""
    fields: dict[str, Any] = {
        "query_id": 1,
        "group_names": ["full"],
        "states": bytes(num_pages + 1),
        "groups": bytes(num_pages + 1),
        "fills": bytes(num_pages + 1),
        "ref_counts": bytes(2 * (num_pages + 1)),
        "holders": bytes(4 * (num_pages + 1)),
        "sequences": [],
        "num_sequences": 0,
    }
    return PagesRead(**(fields | changes))


def make_ready(**changes: Any) -> EngineReady:
    fields: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "kv_dtype": "int8",
        "threads": 2,
        "attention_backend": "scripted",
        "weight_form": "int8",
        "weight_bytes": 4_000_000_000,
        "kv_bytes": NUM_PAGES * 1024,
        "num_pages": NUM_PAGES,
        "page_bytes": 1024,
        "block_size": 16,
        "max_model_len": CONTEXT,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "num_speculative_tokens": 0,
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "layer_windows": [None],
        "eos_token_ids": [END],
        "stage_seconds": {"weights": 1.5},
        "warnings": [],
        "stats": make_stats(),
    }
    return EngineReady(**(fields | changes))


def rate(token_id: int, num_top: int) -> TokenLogprobs:
    """What the scripted engine says of a token, at any position: the same few are the most likely everywhere."""
    ids = list(LIKELY)
    rank = ids.index(token_id) + 1 if token_id in LIKELY else 100
    return TokenLogprobs(LIKELY.get(token_id, UNLIKELY), rank, ids[:num_top], list(LIKELY.values())[:num_top])
