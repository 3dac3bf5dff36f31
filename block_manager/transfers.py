"""Transfers: page contents that must move before the next step computes, in order.

The manager decides, the runner carries out. Order matters and suffices: a page may be the target of one transfer
after it was the source of another, and all of them come before the step writes its own keys and values.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class TransferKind(enum.Enum):
    COPY = "copy"  # device page to device page: a shared block is about to be written
    OUT = "out"  # device page to host page
    IN = "in"  # host page to device page


@dataclass(frozen=True, slots=True)
class Transfer:
    """``sources[i]`` goes to ``targets[i]``, all layers of the page; ids are of the pools that ``kind`` names."""

    kind: TransferKind
    sources: tuple[int, ...]
    targets: tuple[int, ...]


def merged(transfers: Iterable[Transfer]) -> tuple[Transfer, ...]:
    """The same moves in fewer transfers: neighbours of one kind become one, while no page of it is touched twice.

    So within a transfer the order of its pages does not matter, and a runner may move them all at once.
    """
    result: list[Transfer] = []
    sources: list[int] = []
    targets: list[int] = []
    read: set[int] = set()
    written: set[int] = set()
    kind: TransferKind | None = None
    for transfer in transfers:
        collides = not written.isdisjoint(transfer.targets)
        if transfer.kind is TransferKind.COPY:  # both ends are pages of the device
            collides |= not written.isdisjoint(transfer.sources) or not read.isdisjoint(transfer.targets)
        if kind is not None and (transfer.kind is not kind or collides):
            result.append(Transfer(kind, tuple(sources), tuple(targets)))
            for pages in (sources, targets, read, written):
                pages.clear()
        kind = transfer.kind
        sources += transfer.sources
        targets += transfer.targets
        read.update(transfer.sources)
        written.update(transfer.targets)
    if kind is not None:
        result.append(Transfer(kind, tuple(sources), tuple(targets)))
    return tuple(result)
