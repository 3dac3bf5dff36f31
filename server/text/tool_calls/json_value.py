"""JsonValue: where a JSON value ends in text that comes one character at a time (RFC 8259, and no more lenient).

Knows the grammar and builds nothing. Invariants: time and memory are linear in the text, nested as deep as it may be;
what was read is the beginning of some JSON value.
"""

from __future__ import annotations

import enum
import re
from typing import Final

WHITESPACE: Final = " \t\n\r"

_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_NUMBER_CHARACTERS: Final = frozenset("0123456789+-.eE")
_LITERALS: Final = {literal[0]: literal for literal in ("true", "false", "null")}
_ESCAPES: Final = frozenset('"\\/bfnrt')
_HEX_DIGITS: Final = frozenset("0123456789abcdefABCDEF")


class Reading(enum.Enum):
    """What a character did to a value."""

    MORE = enum.auto()
    WHOLE = enum.auto()  # the character ended it, and is part of it
    ENDED_BEFORE = enum.auto()  # the value, a number, is whole without the character
    WRONG = enum.auto()  # no JSON value goes on like this


class _State(enum.Enum):
    VALUE = enum.auto()
    FIRST_ITEM = enum.auto()  # of an array, or its end
    FIRST_KEY = enum.auto()  # of an object, or its end
    KEY = enum.auto()
    COLON = enum.auto()
    AFTER_ITEM = enum.auto()
    STRING = enum.auto()
    ESCAPE = enum.auto()
    HEX = enum.auto()
    NUMBER = enum.auto()
    LITERAL = enum.auto()


class JsonValue:
    """Reads one value, whitespace before it included. Nothing is read after it ended or went wrong."""

    def __init__(self) -> None:
        self._state = _State.VALUE
        self._open: list[str] = []  # the brackets that close what is open
        self._is_key = False
        self._word = ""  # of a number, so far; of a literal, what is to come
        self._hex_digits_left = 0

    def read(self, character: str) -> Reading:
        """Go on by one character."""
        state = self._state
        if state is _State.STRING:
            return self._in_string(character)
        if state is _State.ESCAPE:
            return self._after_backslash(character)
        if state is _State.HEX:
            return self._in_hex(character)
        if state is _State.NUMBER:
            return self._in_number(character)
        if state is _State.LITERAL:
            return self._in_literal(character)
        if character in WHITESPACE:
            return Reading.MORE
        if state is _State.COLON:
            self._state = _State.VALUE
            return Reading.MORE if character == ":" else Reading.WRONG
        if state is _State.AFTER_ITEM:
            return self._after_item(character)
        if state in (_State.FIRST_ITEM, _State.FIRST_KEY) and character == self._open[-1]:
            return self._close()
        if state in (_State.FIRST_KEY, _State.KEY):
            self._is_key = True
            self._state = _State.STRING
            return Reading.MORE if character == '"' else Reading.WRONG
        return self._begin_value(character)

    def _begin_value(self, character: str) -> Reading:
        if character == "{":
            self._open.append("}")
            self._state = _State.FIRST_KEY
        elif character == "[":
            self._open.append("]")
            self._state = _State.FIRST_ITEM
        elif character == '"':
            self._is_key = False
            self._state = _State.STRING
        elif character in _LITERALS:
            self._word = _LITERALS[character][1:]
            self._state = _State.LITERAL
        elif character in _NUMBER_CHARACTERS:
            self._word = character
            self._state = _State.NUMBER
        else:
            return Reading.WRONG
        return Reading.MORE

    def _in_string(self, character: str) -> Reading:
        if character == "\\":
            self._state = _State.ESCAPE
        elif character == '"':
            if not self._is_key:
                return self._end_value()
            self._is_key = False
            self._state = _State.COLON
        elif character < " ":
            return Reading.WRONG
        return Reading.MORE

    def _after_backslash(self, character: str) -> Reading:
        if character == "u":
            self._hex_digits_left = 4
            self._state = _State.HEX
            return Reading.MORE
        self._state = _State.STRING
        return Reading.MORE if character in _ESCAPES else Reading.WRONG

    def _in_hex(self, character: str) -> Reading:
        self._hex_digits_left -= 1
        if not self._hex_digits_left:
            self._state = _State.STRING
        return Reading.MORE if character in _HEX_DIGITS else Reading.WRONG

    def _in_number(self, character: str) -> Reading:
        if character in _NUMBER_CHARACTERS:
            self._word += character
            return Reading.MORE
        if not _NUMBER.fullmatch(self._word):
            return Reading.WRONG
        if not self._open:
            return Reading.ENDED_BEFORE
        self._state = _State.AFTER_ITEM
        return self.read(character)

    def _in_literal(self, character: str) -> Reading:
        expected, self._word = self._word[0], self._word[1:]
        if character != expected:
            return Reading.WRONG
        return Reading.MORE if self._word else self._end_value()

    def _after_item(self, character: str) -> Reading:
        if character == self._open[-1]:
            return self._close()
        if character != ",":
            return Reading.WRONG
        self._state = _State.KEY if self._open[-1] == "}" else _State.VALUE
        return Reading.MORE

    def _close(self) -> Reading:
        self._open.pop()
        return self._end_value()

    def _end_value(self) -> Reading:
        if not self._open:
            return Reading.WHOLE
        self._state = _State.AFTER_ITEM
        return Reading.MORE
