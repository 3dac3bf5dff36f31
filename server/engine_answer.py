"""What the engine answers about requests, as the API tells it to their clients and to whoever watches the page map."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from engine.client import EngineError
from engine.messages import RequestExplanation
from scheduler.request import WaitReason
from server.errors import from_engine, unavailable

ANSWER_SECONDS = 10.0  # that the engine has to answer; the longest step takes less

T = TypeVar("T")


async def engine_answer(answer: Awaitable[T]) -> T:
    """What the engine says; ApiError when it cannot, or does not for too long."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await answer
    except EngineError as error:
        raise from_engine(error) from None
    except TimeoutError:
        raise unavailable(f"the engine has not answered for {ANSWER_SECONDS:g} seconds", "engine_silent") from None


def place_fields(explanation: RequestExplanation) -> dict[str, object]:
    """Where a request stands in the queue, when it starts, and which pages it lacks."""
    lacks_pages = explanation.wait_reason is WaitReason.PAGES  # else nobody asked how many it wants
    start = explanation.expected_start_seconds
    return {
        "position": explanation.position,
        "expected_start_seconds": None if start is None else round(start, 3),
        "wait_reason": explanation.wait_reason,
        "wanted_pages": explanation.wanted_pages if lacks_pages else None,
        "available_pages": explanation.available_pages,
    }


def token_fields(explanations: Sequence[RequestExplanation]) -> dict[str, int]:
    """The tokens of sequences, added up."""
    return {
        "total": sum(one.num_tokens for one in explanations),
        "computed": sum(one.num_computed_tokens for one in explanations),
        "generated": sum(one.num_output_tokens for one in explanations),
    }
