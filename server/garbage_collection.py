"""How Python's cyclic garbage collector runs in the API process.

What a start leaves (modules, a vocabulary) is for ever, so that no collection needs to look at it. A step makes some
objects for each of many streams, all of them gone before the next: a young generation of the usual 700 would be looked
through several times in each step and nothing found, for a tenth of what a streamed token costs.
"""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 20_000


def wait_until_settled() -> None:
    """Call when a start begins: what it makes it keeps, and a tenth of its time would be spent looking for garbage."""
    gc.disable()


def settle() -> None:
    """Call once, when everything is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    gc.enable()
