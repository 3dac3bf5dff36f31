"""Where steps are launched: on the calling thread, or on one of their own while the next step is scheduled.

All launch steps in the order they were submitted, one at a time, so that a step finds the pages and the tokens of the
ones before it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class StepExecutor(Protocol):
    """Runs calls. ``overlaps``: a submitted call may still run when `submit` has returned."""

    overlaps: bool

    def submit(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]: ...


class InlineExecutor:
    """Runs a call at once; what it raises is kept for the future's reader."""

    overlaps = False

    def submit(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        future: Future[R] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class QueueExecutor(InlineExecutor):
    """Runs calls at once, which return while a device still works on what they queued."""

    overlaps = True


class ThreadExecutor:
    """Runs calls on one thread, after ``initialize`` has run there once."""

    overlaps = True

    def __init__(self, initialize: Callable[[], None]) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="step", initializer=initialize)

    def submit(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        return self._pool.submit(call, *args, **kwargs)
