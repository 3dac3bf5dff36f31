"""RequestRegistry: the API requests in flight, by every name they have, and whose they are.

Knows ids and tenants; what a request does is the engine's to say. Invariants: a tenant finds its own requests only, and
never reads the id of another's; what is remembered is bounded, whatever is in flight.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from engine.messages import PreemptionNote
from scheduler.request import FinishReason
from server.http.request_id import RequestId
from server.observation.current import current_record
from server.observation.request_record import RequestRecord
from server.tenant import NO_TENANT

MAX_REMEMBERED = 10_000  # requests; those beyond are served like others, and not found
ANOTHER_REQUEST = "another request"  # instead of an id that a tenant must not read


@dataclass(slots=True, kw_only=True, eq=False)
class InFlightRequest:
    """One API request; ``arrived`` is on the clock of ``time.monotonic``. Its sequences are open until they end.

    ``record`` is what is told of the request when it is over, in a request's own task that of this request.
    """

    request_id: RequestId
    tenant: str
    arrived: float
    sequence_ids: Sequence[str]
    record: RequestRecord | None = field(default_factory=current_record)
    _ended: set[str] = field(default_factory=set)

    def begin(self, number: int) -> None:
        """The sequence at this place goes to the engine."""
        if self.record is not None:
            self.record.begin_sequence(self.sequence_ids[number], number)

    def end(self, number: int, reason: FinishReason) -> None:
        """The sequence at this place has ended, for a reason that its client is told."""
        name = self.sequence_ids[number]
        self._ended.add(name)
        if self.record is not None and name in self.record.sequences:
            self.record.sequences[name].finish_reason = reason

    @property
    def open_sequence_ids(self) -> list[str]:
        return [name for name in self.sequence_ids if name not in self._ended]


class RequestRegistry:
    """The requests of one server. ``capacity`` bounds those that can be found, and those whose tenant is known."""

    def __init__(self, capacity: int = MAX_REMEMBERED) -> None:
        self._capacity = capacity
        self._requests: dict[str, InFlightRequest] = {}
        self._chosen: dict[tuple[str, str], InFlightRequest] = {}
        self._tenants: OrderedDict[str, str] = OrderedDict()  # of the latest requests, ended ones included

    @contextlib.contextmanager
    def holding(self, request: InFlightRequest) -> Iterator[None]:
        """``request`` is in flight in here."""
        own, chosen = request.request_id.own, request.request_id.chosen
        key = None if chosen is None else (request.tenant, chosen)
        if len(self._requests) < self._capacity:
            self._requests[own] = request
            if key is not None:
                self._chosen[key] = request  # of two with one name, the later is meant
        self._tenants[own] = request.tenant
        if len(self._tenants) > self._capacity:
            self._tenants.popitem(last=False)
        try:
            yield
        finally:
            self._requests.pop(own, None)
            if key is not None and self._chosen.get(key) is request:
                del self._chosen[key]

    def find(self, tenant: str, name: str) -> InFlightRequest | None:
        """The request of ``tenant`` that is called so, or has a sequence that is."""
        request = self._requests.get(name) or self._chosen.get((tenant, name))
        if request is None:
            request = self._requests.get(_request_of(name))
            if request is None or name not in request.sequence_ids:
                return None
        return request if request.tenant == tenant else None

    def shown_id(self, sequence_id: str) -> str:
        """What the client of a sequence knows its request by; the sequence's own id where that is not remembered."""
        request = self._requests.get(_request_of(sequence_id))
        return sequence_id if request is None else request.request_id.shown

    def tenant_of(self, sequence_id: str) -> str:
        """Whose a sequence of one of the latest requests is; NO_TENANT where that is not remembered."""
        return self._tenants.get(_request_of(sequence_id), NO_TENANT)

    def oldest(self, tenant: str, limit: int) -> list[InFlightRequest]:
        """At most ``limit`` requests of ``tenant``, in the order they came."""
        return list(islice((one for one in self._requests.values() if one.tenant == tenant), limit))

    def shown(self, tenant: str, notes: Sequence[PreemptionNote]) -> list[PreemptionNote]:
        """The notes as ``tenant`` may read them: without the ids of requests that are not known to be its own."""
        if tenant == NO_TENANT:
            return list(notes)
        return [
            note
            if self._tenants.get(_request_of(note.requester)) == tenant
            else msgspec.structs.replace(note, requester=ANOTHER_REQUEST)
            for note in notes
        ]


def _request_of(sequence_id: str) -> str:
    """The API request of a sequence, whose id ends in the numbers of its prompt and sample."""
    return sequence_id.rsplit("-", 2)[0]
