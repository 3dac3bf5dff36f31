"""WaitingQueue: requests that wait for pages, first come first served, with removal from the middle."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from scheduler.request import Request


class WaitingQueue:
    """FIFO by arrival; a preempted request goes back to the front."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def append(self, request: Request) -> None:
        self._requests[request.request_id] = request

    def push_front(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self._requests.move_to_end(request.request_id, last=False)

    def head(self) -> Request | None:
        return next(iter(self._requests.values()), None)

    def remove(self, request: Request) -> None:
        del self._requests[request.request_id]
