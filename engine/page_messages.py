"""What is asked and told about single pages, and about the sequences that hold them: the source of the page map.

Columns are bytes, one entry for each page id from 0, the null page, on; so 100,000 pages are told in a few hundred
kilobytes and without an object for each.
"""

from __future__ import annotations

import msgspec

from scheduler.request import RequestStatus, WaitReason


class ReadPages(msgspec.Struct, frozen=True, tag="read_pages"):
    """Ask for every page and sequence, now; answered between two steps with a `PagesRead`."""

    query_id: int


class ReadPage(msgspec.Struct, frozen=True, tag="read_page"):
    """Ask for one page; answered with a `PageRead`."""

    query_id: int
    page: int


class ReadSequence(msgspec.Struct, frozen=True, tag="read_sequence"):
    """Ask for the pages and the ledger of one sequence; answered with a `SequenceRead`."""

    query_id: int
    request_id: str


class SequenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence. ``handle`` stands for it in the column of holders; 0: it holds no page.

    ``position`` is its place in the queue, 1 for the one that starts next; None while it does not wait.
    """

    handle: int
    request_id: str
    tenant: str
    status: RequestStatus
    seconds_since_arrival: float
    num_prompt_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    held_pages: int
    num_preemptions: int
    wait_reason: WaitReason | None
    position: int | None


class PagesRead(msgspec.Struct, frozen=True, kw_only=True, tag="pages"):
    """The answer to a `ReadPages`.

    ``states``, ``groups`` and ``fills`` (tokens) have one byte a page, ``ref_counts`` two and ``holders`` (a handle of
    one of them, 0 for none) four, least significant first. A state is a number of `block_manager.page_map.PageState`,
    a group an index into ``group_names``. ``sequences`` has all that run, then the first that wait, of
    ``num_sequences`` in all.
    """

    query_id: int
    group_names: list[str]
    states: bytes
    groups: bytes
    fills: bytes
    ref_counts: bytes
    holders: bytes
    sequences: list[SequenceRow]
    num_sequences: int


class PageRow(msgspec.Struct, frozen=True, kw_only=True):
    """One page. ``state`` is free, cached or held; ``fill`` is in tokens; ``cached_seconds`` since it was last held.

    ``owners`` are request ids. ``hash_prefix`` is the hash's end in hexadecimal, "" for a page that cannot be found.
    """

    page: int
    state: str
    group: str | None
    owners: list[str]
    ref_count: int
    fill: int
    hash_prefix: str
    cached_seconds: float | None


class PageRead(msgspec.Struct, frozen=True, tag="page"):
    """The answer to a `ReadPage`: None for a page that does not exist."""

    query_id: int
    row: PageRow | None
