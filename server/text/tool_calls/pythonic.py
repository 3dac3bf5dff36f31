"""Calls written as a list of Python calls, ``[name(city="Rome", days=3)]``, as all of the message.

Arguments are literals with keywords. A call is told when it is whole: only then can its arguments become JSON.
"""

from __future__ import annotations

import ast
import json
import warnings
from typing import Final

from server.text.tool_calls.parser import Characters, ToolCallParser

BEGIN: Final = "<|python_start|>"
END: Final = "<|python_end|>"
OPENING: Final = "([{"
CLOSING: Final = ")]}"


class PythonicParser(ToolCallParser):
    """Only offered tools are called: a message may be a list without being one of calls."""

    def _accepts(self, name: str) -> bool:
        return name in self._offer.names

    def _read(self) -> Characters[None]:
        yield from self._match(BEGIN)
        if (yield from self._next()) == "[":
            yield from self._python_calls()
            if self.num_calls:
                yield from self._skip(END)
        else:
            self._reread()
        yield from self._rest()

    def _python_calls(self) -> Characters[None]:
        """What follows the bracket; what is no call stays held."""
        while True:
            name = ""
            while (name + (character := (yield from self._next()))).isidentifier():
                name += character
            if character != "(" or not name:
                self._reread()
                return
            arguments = yield from self._python_arguments()
            if arguments is None or not self._tell_call(name):
                self._reread()
                return
            self._add_to_arguments(arguments)
            self._end_call()
            character = yield from self._next()
            if character != ",":
                if character == "]":
                    self._held.clear()
                else:
                    self._reread()
                return

    def _python_arguments(self) -> Characters[str | None]:
        """The JSON of what stands up to the closing parenthesis; None where it is not made of literals."""
        text = "f("
        open_brackets = 1
        quote = ""
        is_escaped = False
        while open_brackets:
            character = yield
            text += character
            if quote:
                if is_escaped:
                    is_escaped = False
                elif character == "\\":
                    is_escaped = True
                elif character == quote:
                    quote = ""
            elif character in "\"'":
                quote = character
            elif character in OPENING:
                open_brackets += 1
            elif character in CLOSING:
                open_brackets -= 1
        return _arguments_json(text)


def _arguments_json(call: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            tree = ast.parse(call, mode="eval").body
        if not isinstance(tree, ast.Call) or tree.args:
            return None
        arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in tree.keywords}
        return None if None in arguments else json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
