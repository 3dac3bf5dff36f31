"""RunningRequests: the requests that run, in order, and the block tables they own.

Invariant: a request in here owns a table; one that left is among the released, so that its place in a runner can be
taken by the next step, but it owns its table until the last step that reads it is over.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from itertools import count

from block_manager.manager import BlockManager
from scheduler.request import Request, RequestStatus


class RunningRequests:
    """By (key, order); a live sequence."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._requests: list[Request] = []
        self._leaving: dict[int, Request] = {}  # by turn
        self._turns = count(1)
        self._released: list[str] = []
        self.reserving: list[Request] = []  # those that came in with a reservation

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def leaving(self) -> Iterator[Request]:
        """Requests that have left, but whose pages a step under way reads."""
        return iter(self._leaving.values())

    def add(self, request: Request) -> None:
        """A request runs, and its table is open."""
        insort(self._requests, request, key=_place)
        request.status = RequestStatus.RUNNING
        request.turn = next(self._turns)
        request.is_new_table = True
        request.num_overtakers = 0
        if request.reserved_tokens:
            self.reserving.append(request)

    def remove(self, request: Request) -> None:
        """It runs no more. Its pages are free now or, where a step under way reads them, when that is over."""
        self._drop(request)
        request.ledger.close_turn(self._blocks.sequence_usage(request.request_id))
        if request.num_steps_under_way:
            self._leaving[request.turn] = request
        else:
            self._blocks.free(request.request_id)

    def remove_preempted(self, request: Request) -> None:
        """Like `remove`, where its table was closed by a preemption."""
        self._drop(request)

    def settle(self, turn: int) -> None:
        """A step is over that ran a request which has left since."""
        request = self._leaving.get(turn)
        if request is not None:
            request.num_steps_under_way -= 1
            if not request.num_steps_under_way:
                del self._leaving[turn]
                self._blocks.free(request.request_id)

    def take_released(self) -> tuple[str, ...]:
        """Ids that were shown to a runner and have left since the last call."""
        released, self._released = tuple(self._released), []
        return released

    def _drop(self, request: Request) -> None:
        self._requests.remove(request)
        if request in self.reserving:
            self.reserving.remove(request)
        if not request.is_new_table:
            self._released.append(request.request_id)


def _place(request: Request) -> tuple[float, int]:
    return request.key, request.order
