"""How deep lists and objects of JSON lie in each other. Knows no field, and walks without recursion.

Parsers take deeper values than those can read that come after them (a template's ``tojson``, the writers of answers).
"""

from __future__ import annotations

from collections.abc import Mapping

MAX_DEPTH = 240  # of what clients send, and of objects in an answer; orjson writes 254, envelopes included


def is_deeper(value: object, levels: int = MAX_DEPTH) -> bool:
    """Whether there are more than ``levels`` of lists and objects, ``value`` and what is no such value included."""
    layer = [value]
    for _ in range(levels):
        layer = [
            inner
            for one in layer
            if isinstance(one, (Mapping, list))
            for inner in (one.values() if isinstance(one, Mapping) else one)
        ]
        if not layer:
            return False
    return True
