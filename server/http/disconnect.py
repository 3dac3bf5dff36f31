"""Work that ends when its client leaves.

Knows ASGI's receive channel and nothing of what the work is. Invariant: when `unless_disconnected` returns or raises,
the work has ended too, its ``finally`` blocks included.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientDisconnected(Exception):
    """The client left before its answer was complete; there is nobody to tell."""


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, or ClientDisconnected after cancelling it. The request's body must have been read."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnected
        return working.result()
    finally:
        for task in (working, watching):
            await _cancel(task)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task
