"""What is asked and told about adapters: small changes of the model's weights that a request chooses by name."""

from __future__ import annotations

import msgspec


class AdapterReport(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded adapter: its ``rank``, the largest of its parts, and the memory it takes."""

    name: str
    path: str
    rank: int
    num_bytes: int


class AdapterRequests(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests use an adapter now."""

    name: str
    running: int
    waiting: int


class LoadAdapter(msgspec.Struct, frozen=True, tag="load_adapter"):
    """Load the adapter in the directory ``path`` under ``name``; answered with an `AdapterAnswer` once that is done.

    ``replaces``: one of that name may be there, and goes.
    """

    query_id: int
    name: str
    path: str
    replaces: bool = False


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload_adapter"):
    """Let go of an adapter; answered with an `AdapterAnswer`. Requests that use it may finish, none can begin."""

    query_id: int
    name: str


class AdapterAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="adapters"):
    """What came of a `LoadAdapter` or an `UnloadAdapter`, and the ``adapters`` that requests can choose from now on.

    ``code`` and ``problem`` say why nothing did, "" where it did: "adapter_exists", "unknown_adapter" or
    "invalid_adapter", and a sentence.
    """

    query_id: int
    adapters: list[AdapterReport]
    code: str = ""
    problem: str = ""
