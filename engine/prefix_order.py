"""PrefixOrder: the rows of a block table in an order in which those that begin with the same pages are neighbours.

    row         3      0      7      2      5
    pages       8 9 1  8 9 4  8 9 2  8 6 7  3 5
    shared           2      2      1      0

What two rows share is the least that neighbours between them share, so that for any choice of rows it is found without
looking at a page. A row's pages are compared when they are written from the first block on, or over others, which is
when a request starts, and when it gets a copy of a page; blocks that are appended are new pages, which nobody else has
there. Rows keep their place until they are written anew, whether a request runs in them or not.

Knows rows and page ids, not requests. Invariant: neighbours share at least as many pages as is said of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class PrefixOrder:
    """Of ``tables`` [num_rows, num_blocks], which others write and say so."""

    def __init__(self, tables: Array) -> None:
        self.version = 0  # grows when an order that was given may no longer hold, or may be bettered
        self._tables = tables
        self._lengths = np.zeros(len(tables), dtype=np.int64)
        self._rows = np.empty(0, dtype=np.int64)
        self._shared = np.empty(0, dtype=np.int64)  # by each row with the next one; the last shares none
        self._places = np.full(len(tables), -1)
        self._rewritten: dict[int, None] = {}

    def note(self, row: int, start: int, end: int) -> None:
        """Blocks ``start : end`` of ``row`` were written, and it has no others after them."""
        if start == 0 or start < self._lengths[row]:
            self._rewritten[row] = None
            self.version += 1
        self._lengths[row] = end

    def neighbours(self, rows: Array) -> tuple[Array, Array]:
        """An order of ``rows``, as places in it, and how many first pages each shares with the next: one fewer.

        All rows must have been written.
        """
        if self._rewritten:
            self._bring_up_to_date()
        if len(rows) < 2:
            return np.arange(len(rows)), np.empty(0, dtype=np.int64)
        places = self._places[rows]
        order = np.argsort(places)
        return order, np.minimum.reduceat(self._shared, places[order])[:-1]

    def _bring_up_to_date(self) -> None:
        rewritten = list(self._rewritten)
        self._rewritten.clear()
        is_left = np.ones(len(self._tables), dtype=bool)
        is_left[rewritten] = False
        left = np.flatnonzero(is_left[self._rows])
        if len(left):
            self._rows, self._shared = self._rows[left], np.minimum.reduceat(self._shared, left)
            self._shared[-1] = 0
        else:
            self._rows, self._shared = self._rows[:0], self._shared[:0]
        for row in rewritten:
            self._insert(row)
        self._places[self._rows] = np.arange(len(self._rows))

    def _insert(self, row: int) -> None:
        """Put a row behind those that it shares most with."""
        if not len(self._rows):
            self._rows, self._shared = np.array([row]), np.zeros(1, dtype=np.int64)
            return
        place, num_shared = self._nearest(row)
        place += int(np.argmax(self._shared[place:] <= num_shared))  # not between two that share more with each other
        self._rows = np.concatenate((self._rows[: place + 1], (row,), self._rows[place + 1 :]))
        self._shared = np.concatenate((self._shared[:place], (num_shared,), self._shared[place:]))

    def _nearest(self, row: int) -> tuple[int, int]:
        """The place of a row that ``row`` shares most pages with, and how many; the last place where it shares none."""
        rows, shared, length = self._rows, self._shared, self._lengths[row]
        place, num_shared, first, end = len(rows) - 1, 0, 0, len(rows)
        while num_shared < length:
            others = rows[first:end]
            is_same = self._tables[others, num_shared] == self._tables[row, num_shared]
            found = np.flatnonzero(is_same & (self._lengths[others] > num_shared))
            if not len(found):
                break
            place = first + int(found[0])
            num_shared = self._count_shared(row, int(rows[place]), num_shared + 1)
            # all that share as much with the one found: any of them may share more with the row
            apart = np.flatnonzero(shared[:place] < num_shared)
            first = int(apart[-1]) + 1 if len(apart) else 0
            end = place + int(np.argmax(shared[place:] < num_shared)) + 1
        return place, num_shared

    def _count_shared(self, row: int, other: int, start: int) -> int:
        """First pages that are the same in both, given that ``start`` are."""
        end = int(min(self._lengths[row], self._lengths[other]))
        differs = self._tables[row, start:end] != self._tables[other, start:end]
        first = int(np.argmax(differs)) if start < end else 0
        return start + first if start < end and differs[first] else max(start, end)
