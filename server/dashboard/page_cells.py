"""PageCells: every page as eight bytes, in chunks, and which chunks changed from one look to the next.

    byte   0      1      2     3          4 5 6 7
           state  group  fill  ref_count  handle of one holder, least significant byte first

Knows columns, not what they mean. Invariant: nothing here costs an object for each page; whole columns are copied and
compared as bytes, so a look at 100,000 pages that did not change takes some tens of microseconds.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter

from engine.page_messages import PagesRead
from server.http.sse import named_frame

CELL_BYTES = 8
CHUNK_PAGES = 256
CHUNK_BYTES = CHUNK_PAGES * CELL_BYTES
MOST_REFERENCES = 255  # what one byte can say; more are shown as so many
STATES = ("free", "cached", "held")  # in the order of their numbers


class PageCells:
    """The pages as they were at the latest look; chunk 0 begins with page 1, since page 0 is the null page.

    ``counts`` has how many are in each state, how many of those held are shared, and the total.
    """

    def __init__(self) -> None:
        self._columns: tuple[bytes, ...] = ()
        self._cells = b""
        self._frames: dict[int, bytes] = {}
        self.counts: Counter[str] = Counter()

    @property
    def num_chunks(self) -> int:
        return -(-len(self._cells) // CHUNK_BYTES)

    def update(self, read: PagesRead) -> set[int]:
        """Take over another look at the same pages; the chunks that it changes, all of them at the first."""
        columns = (read.states, read.groups, read.fills, read.ref_counts, read.holders)
        if columns == self._columns:
            return set()
        old, new = self._cells, encode_cells(read)
        self._columns, self._cells, self.counts = columns, new, count_pages(read)
        changed = {
            number
            for number in range(self.num_chunks)
            if old[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
            != new[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
        }
        for number in changed:
            self._frames.pop(number, None)
        return changed

    def frame(self, number: int) -> bytes:
        """The event that tells one chunk; made once, however many ask."""
        if number not in self._frames:
            cells = b64encode(self._cells[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES])
            self._frames[number] = named_frame(
                "pages", b'{"first":%d,"cells":"%b"}' % (number * CHUNK_PAGES + 1, cells)
            )
        return self._frames[number]


def encode_cells(read: PagesRead) -> bytes:
    """Eight bytes for each page from page 1 on."""
    cells = bytearray(CELL_BYTES * (len(read.states) - 1))
    cells[0::8] = read.states[1:]
    cells[1::8] = read.groups[1:]
    cells[2::8] = read.fills[1:]
    cells[3::8] = _capped(read.ref_counts[2::2], read.ref_counts[3::2])
    for byte in range(4):
        cells[4 + byte :: 8] = read.holders[4 + byte :: 4]
    return bytes(cells)


def _capped(low: bytes, high: bytes) -> bytes:
    """Counts of two bytes in one."""
    if high.count(0) == len(high):
        return low
    return bytes(MOST_REFERENCES if more else count for count, more in zip(low, high, strict=True))


def count_pages(read: PagesRead) -> Counter[str]:
    """How many pages are in each state, the shared ones among those held, and all."""
    states = read.states[1:]
    counts = Counter({name: _occurrences(states, bytes([number])) for number, name in enumerate(STATES)})
    references = _capped(read.ref_counts[2::2], read.ref_counts[3::2])
    counts["shared"] = len(references) - _occurrences(references, b"\0\1")
    counts["total"] = len(states)
    return counts


def _occurrences(column: bytes, values: bytes) -> int:
    """How many bytes of ``column`` are among ``values``; in the same time however many are, unlike ``count``."""
    return len(column) - len(column.translate(None, values))
