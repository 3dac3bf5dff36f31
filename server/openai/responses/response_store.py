"""ResponseStore: responses that can be asked for again, or be gone on from, in memory.

Knows tenants and sizes, no HTTP. Invariants: nobody finds what another tenant stored; there are never more responses,
nor more bytes of them, than the bounds allow: those that were not used for longest go first; a response that is gone
takes nothing with it that a later one needs, since each keeps the whole conversation before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from server.openai.responses.items import Item

MAX_RESPONSES = 10_000
MAX_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """``shown`` is the response's JSON; ``input`` are all items before its ``output``, earlier responses' included."""

    id: str
    shown: bytes
    input: tuple[Item, ...]
    output: tuple[Item, ...]

    @property
    def items(self) -> tuple[Item, ...]:
        """What a response that follows this one begins with."""
        return self.input + self.output

    def size(self) -> int:
        """Bytes as JSON, items that are shared with other responses included."""
        return len(self.shown) + sum(len(orjson.dumps(item.shown())) for item in self.input)


class ResponseStore:
    """The responses of one server."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._responses: OrderedDict[tuple[str, str], tuple[StoredResponse, int]] = OrderedDict()  # least used first
        self._holders: dict[tuple[str, str], str] = {}  # item id -> the response whose output it is in
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._responses)

    def put(self, tenant: str, response: StoredResponse) -> None:
        """Keep it; one that is larger than all there is room for is not kept."""
        size = response.size()
        if size > self._max_bytes:
            return
        self._responses[tenant, response.id] = response, size
        self._holders.update(((tenant, item.id), response.id) for item in response.output)
        self.num_bytes += size
        while len(self._responses) > self._max_responses or self.num_bytes > self._max_bytes:
            self._remove(next(iter(self._responses)))

    def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """The tenant's response of this id, which is now the one used last."""
        key = tenant, response_id
        if key not in self._responses:
            return None
        self._responses.move_to_end(key)
        return self._responses[key][0]

    def find_item(self, tenant: str, item_id: str) -> Item | None:
        """An item of an output that is stored."""
        holder = self._holders.get((tenant, item_id))
        response = None if holder is None else self.get(tenant, holder)
        return None if response is None else next(_with_id(response, item_id))

    def delete(self, tenant: str, response_id: str) -> bool:
        """Whether there was one."""
        if (tenant, response_id) not in self._responses:
            return False
        self._remove((tenant, response_id))
        return True

    def _remove(self, key: tuple[str, str]) -> None:
        response, size = self._responses.pop(key)
        self.num_bytes -= size
        for item in response.output:
            self._holders.pop((key[0], item.id), None)


def _with_id(response: StoredResponse, item_id: str) -> Iterator[Item]:
    return (item for item in response.output if item.id == item_id)
