"""Embedding: one prompt on its way through the engine to its pooled vector.

Knows neither HTTP nor JSON, nor what is done with the vector. Invariants: one that was started is counted exactly once
(`CountedSequence`); when its coroutine is cancelled, the engine has been told.
"""

from __future__ import annotations

import contextlib
import time

from engine.messages import EngineRequest
from scheduler.request import FinishReason
from server.generation.counted_sequence import CountedSequence
from server.metrics.metrics import RequestEnd
from server.state import ServerState


async def embed(state: ServerState, request: EngineRequest, arrived: float) -> bytes:
    """The pooled hidden states of ``request``'s prompt, little-endian float32. Raises ApiError when the engine fails.

    ``arrived`` is on the clock of ``time.monotonic``.
    """

    def describe(outcome: FinishReason) -> RequestEnd:
        return RequestEnd(
            outcome=outcome,
            seconds=time.monotonic() - arrived,
            prompt_tokens=len(request.prompt_token_ids),
            generation_tokens=0,
            max_tokens=0,
        )

    vector, outcome = b"", None
    with CountedSequence(state.metrics, describe) as sequence:
        state.metrics.count_samples(1)
        async with contextlib.aclosing(state.client.generate(request)) as deltas:
            async for delta in deltas:
                sequence.check(delta)
                vector = delta.embedding or vector
                outcome = delta.finish_reason or outcome
        sequence.end(outcome if vector else None)
    return vector
