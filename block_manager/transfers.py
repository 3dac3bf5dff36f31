"""Transfers: page contents that must move before the next step computes, in order.

The manager decides, the runner carries out. Order matters and suffices: a page may be the target of one transfer
after it was the source of another, and all of them come before the step writes its own keys and values.
"""

from __future__ import annotations

import enum
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
