"""RequestEnds: tells everybody who asked how each sequence ended in the engine.

The client hands over the last delta of every sequence, as the engine sent it, also where nobody reads it any more
(`EngineClient.on_end`). Invariant: an observer that fails keeps no other from being told, and no delta from its reader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from engine.messages import RequestDelta

EndObserver = Callable[[RequestDelta], None]

logger = logging.getLogger("octavo.server")


class RequestEnds:
    """Observers of ends, told in the order in which they subscribed. Each is called in the event loop: be quick."""

    def __init__(self) -> None:
        self._observers: list[EndObserver] = []

    def subscribe(self, observer: EndObserver) -> None:
        self._observers.append(observer)

    def tell(self, last: RequestDelta) -> None:
        """``last`` has a finish reason and, if the sequence was ever queued, a ledger."""
        for observer in self._observers:
            try:
                observer(last)
            except Exception:
                logger.exception("an observer of ended requests failed")
