"""WaitingQueue: requests that wait for pages, in the order of a policy, with removal from anywhere."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace

from scheduler.policy import Policy
from scheduler.request import Request, RequestStatus

_Entry = tuple[float, int, Request]  # key, order: unique, so that requests are never compared


class WaitingQueue:
    """Lanes of requests, each sorted once; the order of the lanes is asked for at every look.

    ``num_tokens`` is the backlog: tokens of the waiting requests that are yet to be computed.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._lanes: dict[str, list[_Entry]] = {}
        self._tokens: dict[Request, int] = {}  # of each, as of when it came
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._tokens)

    def __iter__(self) -> Iterator[Request]:
        """First to last. The request just seen may be removed meanwhile, and what lanes have had may change."""
        lanes = list(self._lanes.values())
        seen = [0] * len(lanes)
        while True:
            left = [number for number, lane in enumerate(lanes) if seen[number] < len(lane)]
            if not left:
                return
            first = left[0]
            if len(left) > 1:
                first = min(left, key=lambda number: self._policy.rank(lanes[number][seen[number]][2]))
            lane, index = lanes[first], seen[first]
            entry = lane[index]
            yield entry[2]
            if index < len(lane) and lane[index] is entry:
                seen[first] += 1

    def expected(self) -> Iterator[Request]:
        """In the order in which they are expected to start: each that does makes its lane go later."""
        lanes = [iter(lane) for lane in self._lanes.values()]
        heads: list[tuple[float, float, int, int, Request]] = []  # debt, key, order, number of the lane
        for number, (name, lane) in enumerate(zip(self._lanes, lanes, strict=True)):
            key, order, request = next(lane)
            heads.append((self._policy.debt(name), key, order, number, request))
        heapify(heads)
        while heads:
            debt, _, _, number, request = heads[0]
            yield request
            following = next(lanes[number], None)
            if following is None:
                heappop(heads)
            else:
                key, order, head = following
                heapreplace(heads, (debt + self._policy.price(request), key, order, number, head))

    def add(self, request: Request) -> None:
        """Put a request, new or preempted, in its place."""
        insort(self._lanes.setdefault(request.lane, []), (request.key, request.order, request))
        request.status = RequestStatus.WAITING
        self._tokens[request] = request.num_tokens - request.num_computed_tokens
        self.num_tokens += self._tokens[request]

    def remove(self, request: Request) -> None:
        """Take a request out; KeyError when it does not wait."""
        lane = self._lanes.get(request.lane, [])
        index = bisect_left(lane, (request.key, request.order), key=lambda entry: entry[:2])
        if index == len(lane) or lane[index][2] is not request:
            raise KeyError(request.request_id)
        del lane[index]
        if not lane:
            del self._lanes[request.lane]
        self.num_tokens -= self._tokens.pop(request)
