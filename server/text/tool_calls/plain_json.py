"""Calls of models that were taught no way of writing them: JSON, as the whole message.

Objects ``{"name": ..., "arguments": {...}}``, or an array of them, which is what `describe_tools` asks for.
"""

from __future__ import annotations

from server.text.tool_calls.parser import Characters, ToolCallParser


class PlainJsonParser(ToolCallParser):
    """Only offered tools are called: a message may be JSON without being a call."""

    def _accepts(self, name: str) -> bool:
        return name in self._offer.names

    def _read(self) -> Characters[None]:
        begin = yield from self._next()
        self._reread()
        if begin == "[":
            yield from self._list()
        else:
            while (yield from self._calls(None)):
                pass
        yield from self._rest()
