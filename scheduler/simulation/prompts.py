"""Prompts: token ids that share a prefix exactly where their requests say so.

Ids below 2^31 belong to requests, each its own; those from there on to prefixes, two to each, from a hash of its name.
So no table of prefixes is kept, and two of them meet by chance once in 2^62.
"""

from __future__ import annotations

import hashlib

from scheduler.simulation.trace import TraceRequest

STOP_ID = 0
_PREFIX_BIT = 1 << 31


def token_ids(request: TraceRequest, own_id: int) -> list[int]:
    """The prompt of ``request``; ``own_id``, from 1 to 2^31 - 1, is the token that no other request has."""
    own = [own_id] * (request.prompt_tokens - request.prefix_tokens)
    if request.prefix_id is None:
        return own
    digest = hashlib.blake2b(request.prefix_id.encode(), digest_size=8).digest()
    pair = [int.from_bytes(half, "little") | _PREFIX_BIT for half in (digest[:4], digest[4:])]
    return (pair * (request.prefix_tokens // 2 + 1))[: request.prefix_tokens] + own
