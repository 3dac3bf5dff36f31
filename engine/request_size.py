"""Whether a request could ever run on an engine, by the block manager's own arithmetic, before it is sent there."""

from __future__ import annotations

from block_manager.sizing import Capacity
from engine.client_errors import RequestTooLarge
from engine.messages import EngineReady


def check_fits(
    ready: EngineReady, capacity: Capacity, num_prompt_tokens: int, max_tokens: int, *, rotates: bool = False
) -> None:
    """Raise RequestTooLarge for one that could not, even alone. See `EngineClient.check_fits`."""
    limit = f"this model's maximum context length is {ready.max_model_len} tokens"  # words that clients look for
    if num_prompt_tokens >= ready.max_model_len and max_tokens > 0:
        raise RequestTooLarge(
            f"{limit}; the prompt has {num_prompt_tokens} tokens, and the answer needs at least one",
            "context_length_exceeded",
        )
    total = num_prompt_tokens + max_tokens
    if rotates:
        total = min(total, max(num_prompt_tokens + 1, capacity.max_tokens(ready.max_model_len)))
    if total > ready.max_model_len:
        raise RequestTooLarge(
            f"{limit}; {num_prompt_tokens} prompt tokens and max_tokens {max_tokens} make {total}",
            "context_length_exceeded",
        )
    # the last token of an answer is never computed, so it needs no slot
    computed = max(num_prompt_tokens, total - 1)
    if not capacity.fits(computed):
        raise RequestTooLarge(
            f"{num_prompt_tokens} prompt tokens and max_tokens {max_tokens} need "
            f"{capacity.peak_pages(computed, 1)} KV pages at once; the pool has {capacity.num_pages}",
            "kv_capacity_exceeded",
        )
