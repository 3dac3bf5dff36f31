"""Embedding: one prompt on its way through the engine to its pooled vector.

Knows neither HTTP nor JSON, nor what is done with the vector. Invariants: one that was started is counted exactly once,
as stop, length, abort or error, or as a refusal; when its coroutine is cancelled, the engine has been told.
"""

from __future__ import annotations

import contextlib
import time

from engine.client import EngineError
from engine.messages import EngineRequest
from scheduler.request import FinishReason
from server.errors import ApiError, from_engine, from_failure, internal_error, unavailable
from server.metrics.catalogue import QUEUE_FULL
from server.metrics.metrics import RequestEnd
from server.state import ServerState


async def embed(state: ServerState, request: EngineRequest, arrived: float) -> bytes:
    """The pooled hidden states of ``request``'s prompt, little-endian float32. Raises ApiError when the engine fails.

    ``arrived`` is on the clock of ``time.monotonic``.
    """
    outcome: FinishReason | None = FinishReason.ABORT  # what it is when this is cancelled
    state.metrics.count_submitted()
    state.metrics.count_samples(1)
    vector = None
    try:
        async with contextlib.aclosing(state.client.generate(request)) as deltas:
            async for delta in deltas:
                if (failure := delta.failure) is not None:
                    state.metrics.count_failure(failure.code)
                    outcome = None if failure.code == QUEUE_FULL else FinishReason.ERROR
                    raise from_failure(failure)
                if delta.finish_reason is FinishReason.ABORT:
                    raise unavailable("the engine aborted the request", "aborted")  # nobody here asked for it
                vector = delta.embedding or vector
                if delta.finish_reason is not None:
                    outcome = delta.finish_reason
        if vector is None:
            outcome = FinishReason.ERROR
            raise internal_error()
        return vector
    except ApiError:
        raise
    except EngineError as error:
        outcome = FinishReason.ERROR
        raise from_engine(error) from error
    except Exception:
        outcome = FinishReason.ERROR
        raise
    finally:
        if outcome is not None:
            end = RequestEnd(
                outcome=outcome,
                seconds=time.monotonic() - arrived,
                prompt_tokens=len(request.prompt_token_ids),
                generation_tokens=0,
                max_tokens=0,
            )
            state.metrics.count_end(end)
