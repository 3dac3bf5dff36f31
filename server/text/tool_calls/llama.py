"""Calls as Llama 3 writes them: ``{"name": ..., "parameters": {...}}`` is all of the message, or follows a marker.

Several are separated by semicolons.
"""

from __future__ import annotations

from typing import Final

from server.text.tool_calls.parser import Characters, ToolCallParser

CALL: Final = "<|python_tag|>"
SEPARATOR: Final = ";"


class LlamaParser(ToolCallParser):
    """Without a marker, only an offered tool is called: a message may be JSON without being a call."""

    def _accepts(self, name: str) -> bool:
        return name in self._offer.names if not self._is_marked else super()._accepts(name)

    def _read(self) -> Characters[None]:
        yield from self._calls(SEPARATOR)
        while True:
            yield from self._until(CALL)
            yield from self._calls(SEPARATOR)
