"""Calls as Hermes, Qwen and their heirs write them: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""

from __future__ import annotations

from typing import Final

from server.text.tool_calls.parser import CallEnd, Characters, ToolCallParser

CALL: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"


class HermesParser(ToolCallParser):
    """Any number of calls, each between its markers."""

    def _read(self) -> Characters[None]:
        while True:
            yield from self._until(CALL)
            if (yield from self._call(CALL_END)) is CallEnd.WHOLE:
                yield from self._skip(CALL_END)
