"""Calls as Mistral's models write them, behind ``[TOOL_CALLS]``: a JSON array of calls, or a name and its arguments.

The latter, of newer models, is ``[TOOL_CALLS]name[ARGS]{...}``, once for each call; some leave ``[ARGS]`` out, and some
put an id of their own between ``[CALL_ID]`` and ``[ARGS]``, which is not used.
"""

from __future__ import annotations

from typing import Final

from server.text.tool_calls.parser import Characters, ToolCallParser

CALL: Final = "[TOOL_CALLS]"
ARGUMENTS: Final = "[ARGS]"
CALL_ID: Final = "[CALL_ID]"
MAX_NAME_CHARACTERS: Final = 256


class MistralParser(ToolCallParser):
    """Any number of calls, in either form."""

    def _read(self) -> Characters[None]:
        while True:
            yield from self._until(CALL)
            begin = yield from self._next()
            self._reread()
            if begin == "[":
                yield from self._list()
            elif begin == "{":
                while (yield from self._calls(None)):
                    pass
            else:
                yield from self._named_call()

    def _named_call(self) -> Characters[None]:
        text = ""
        while True:
            character = yield
            if character == "{":
                break
            text += character
            if len(text) > MAX_NAME_CHARACTERS:
                return
        self._reread()
        name = text.removesuffix(ARGUMENTS).split(CALL_ID)[0].strip()
        if not name or any(character.isspace() or character in "[]" for character in name):
            return
        self._tell_call(name, keep=1)
        if (yield from self._tell_arguments(None)):
            self._end_call()
