"""Work whose time grows with a request's size, kept from the event loop where it is long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

INLINE_BYTES = 4096  # of a request; less is done before another thread would have begun

T = TypeVar("T")


async def in_thread_if_long(size: int, work: Callable[[], T]) -> T:
    """What ``work`` returns or raises; for a request of ``size`` bytes, in a thread if that is many."""
    return work() if size <= INLINE_BYTES else await asyncio.to_thread(work)
