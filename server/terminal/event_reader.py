"""EventReader: the objects in a stream of server-sent events, however its bytes are cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

DONE = b"[DONE]"


class EventReader:
    """Feed it bytes; it yields the JSON object of each event that is whole. Comments and ``[DONE]`` are no objects."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (payload := line[5:].strip()) != DONE:
                yield orjson.loads(payload)
