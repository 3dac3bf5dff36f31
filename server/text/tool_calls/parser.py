"""ToolCallParser: divides a model's text into content and tool calls, as it comes.

What all formats share; each of them says in `_read` how its calls are written. Knows neither tokens nor the API.
Invariants:

- The result depends on the text alone, never on how it was cut into deltas: a parser reads character by character.
- A call is told as soon as its name and the beginning of its arguments are known; its arguments are then told as they
  come. What turns out to be no call before that is content, the marker in front of it included.
- Held back is only what may be a call: a marker, or the beginning of one, with the whitespace before it.
- Every character of a text without calls is content, in its place. Whitespace around calls is dropped.
- Time is linear in the text.

A `_read` is a generator that gets one character at a time from ``yield`` and never sees the end of the text. Each
character is held until the generator decides what becomes of it; `_reread` makes the latest one come again.
"""

from __future__ import annotations

import enum
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from server.http.nesting import is_deeper
from server.text.tool_calls.call import ToolCallDelta
from server.text.tool_calls.json_value import WHITESPACE, JsonValue, Reading

NAME_KEYS: Final = frozenset({"name", "function"})
ARGUMENTS_KEYS: Final = frozenset({"arguments", "parameters"})
OTHER_KEYS: Final = frozenset({"id", "type"})

Result = TypeVar("Result")
Characters = Generator[None, str, Result]


class CallEnd(enum.Enum):
    """What became of something that may be a call."""

    WHOLE = enum.auto()
    BROKEN = enum.auto()  # told, and then no JSON any more: all up to its end marker was taken for arguments
    NO_CALL = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOffer:
    """The tools that a model may call, by name; ``is_single``: not more than one call in a message."""

    names: Collection[str]
    make_id: Callable[[], str]
    is_single: bool = False


@dataclass(frozen=True, slots=True)
class ParsedText:
    """What new text brought. ``spans``: from where to where in all text so far the content is, in characters."""

    content: str = ""
    calls: tuple[ToolCallDelta, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()


class ToolCallParser(ABC):
    """One message."""

    def __init__(self, offer: ToolOffer) -> None:
        self.num_calls = 0  # told so far
        self._offer = offer
        self._position = 0  # characters fed
        self._held: list[str] = []
        self._content: list[str] = []
        self._spans: list[tuple[int, int]] = []
        self._deltas: list[ToolCallDelta] = []
        self._arguments: list[str] = []
        self._is_told = False  # the call being read
        self._has_open_arguments = False
        self._is_muted = False  # it is one too many
        self._is_marked = False  # what is held comes behind a marker that only calls have
        self._comes_again = False
        self._reader = self._read()
        next(self._reader)

    @abstractmethod
    def _read(self) -> Characters[None]:
        """Read the message."""

    def feed(self, text: str) -> ParsedText:
        """What ``text`` brings."""
        for character in text:
            self._position += 1
            self._held.append(character)
            self._reader.send(character)
            while self._comes_again:
                self._comes_again = False
                self._reader.send(character)
        return self._take()

    def finish(self, *, is_cut: bool) -> ParsedText:
        """What was held back at the end of the text; where the text ``is_cut``, a call that has no name yet is not."""
        self._reader.close()
        if self._has_open_arguments:
            self._add_held_to_arguments()
        elif (
            not self._is_told
            and not (is_cut and self._is_marked)
            and not (self.num_calls and "".join(self._held).isspace())
        ):
            self._release()
        return self._take()

    def _take(self) -> ParsedText:
        self._flush_arguments()
        parsed = ParsedText("".join(self._content), tuple(self._deltas), tuple(self._spans))
        self._content.clear()
        self._deltas.clear()
        self._spans.clear()
        return parsed

    # What becomes of characters.

    def _reread(self) -> None:
        self._comes_again = True

    def _release(self, *, keep: int = 0) -> None:
        """What is held, but for the latest ``keep`` characters, is content."""
        number = len(self._held) - keep
        if number <= 0:
            return
        end = self._position - keep
        start = end - number
        if self._spans and self._spans[-1][1] == start:
            start = self._spans.pop()[0]
        self._spans.append((start, end))
        self._content.extend(self._held[:number])
        del self._held[:number]

    def _tell_call(self, name: str, *, keep: int = 0) -> bool:
        """The call has begun, and what is held, but for the latest ``keep`` characters, is part of it.

        False where there can be no such call.
        """
        if not self._accepts(name):
            return False
        self._flush_arguments()
        self._is_told = True
        self._is_muted = self._offer.is_single and self.num_calls > 0
        if not self._is_muted:
            self._deltas.append(ToolCallDelta(self.num_calls, "", self._offer.make_id(), name))
            self.num_calls += 1
        del self._held[: len(self._held) - keep]
        return True

    def _accepts(self, name: str) -> bool:
        return name != ""

    def _add_to_arguments(self, text: str) -> None:
        if not self._is_muted:
            self._arguments.append(text)

    def _add_held_to_arguments(self, *, keep: int = 0) -> None:
        number = len(self._held) - keep
        self._add_to_arguments("".join(self._held[:number]))
        del self._held[:number]

    def _flush_arguments(self) -> None:
        if text := "".join(self._arguments):
            self._deltas.append(ToolCallDelta(self.num_calls - 1, text))
        self._arguments.clear()

    def _end_call(self, *, keep: int = 0) -> None:
        self._is_told = self._has_open_arguments = False
        del self._held[: len(self._held) - keep]

    # Parts of formats.

    def _until(self, marker: str) -> Characters[None]:
        """Content up to a marker, whose first character is in no other place of it; it stays held."""
        self._is_marked = False
        matched = 0
        while True:
            character = yield
            if matched and character != marker[matched]:
                self._release(keep=1)
                matched = 0
            if character == marker[matched]:
                matched += 1
                if matched == len(marker):
                    self._is_marked = True
                    return
            elif not character.isspace():
                self._release()

    def _rest(self) -> Characters[None]:
        """No calls come any more."""
        self._is_marked = False
        while True:
            character = yield
            if not self.num_calls or not character.isspace():
                self._release()

    def _next(self) -> Characters[str]:
        """The next character that is no whitespace."""
        while True:
            character = yield
            if character not in WHITESPACE:
                return character

    def _skip(self, marker: str) -> Characters[None]:
        """Drop a marker, if it comes next, with the whitespace before it."""
        if (yield from self._match(marker)):
            self._held.clear()

    def _match(self, marker: str) -> Characters[bool]:
        """Whether a marker comes next; it is held, with the whitespace before it."""
        matched = 0
        while True:
            character = yield
            if character == marker[matched]:
                matched += 1
                if matched == len(marker):
                    return True
            elif matched or not character.isspace():
                self._release(keep=1 if matched else len(self._held))
                self._reread()
                return False

    def _call(self, end_marker: str | None = None) -> Characters[CallEnd]:
        """One call as a JSON object with its name and its arguments, in any order.

        ``end_marker`` ends arguments that are no JSON. The character that makes it no call comes again.
        """
        name = arguments = None
        is_first = True
        character = yield from self._next()
        while character == ("{" if is_first else ","):
            is_first = False
            key = yield from self._json()
            if not isinstance(key, str) or (yield from self._next()) != ":":
                break
            if key in NAME_KEYS and name is None:
                name = yield from self._json()
                if not isinstance(name, str):
                    break
                if arguments is not None:
                    if not self._tell_call(name):
                        break
                    self._add_to_arguments(arguments)
            elif key in ARGUMENTS_KEYS and arguments is None and not self._is_told:
                begin = yield from self._next()
                self._reread()
                if begin == "{" and isinstance(name, str):
                    if not self._tell_call(name, keep=1):
                        break
                    if not (yield from self._tell_arguments(end_marker)):
                        return CallEnd.BROKEN
                    arguments = ""
                else:
                    arguments = _object_text((yield from self._json()))
                    if arguments is None:
                        break
                    if isinstance(name, str):
                        if not self._tell_call(name):
                            break
                        self._add_to_arguments(arguments)
            elif key not in OTHER_KEYS or (yield from self._json()) is _NOTHING:
                break
            character = yield from self._next()
        if character == "}" and not is_first and isinstance(name, str):
            if not self._is_told:
                if not self._tell_call(name):
                    return self._give_up()
                self._add_to_arguments("{}")
            self._end_call()
            return CallEnd.WHOLE
        if not self._is_told:
            return self._give_up()
        self._reread()
        self._end_call(keep=1)  # its arguments were whole
        return CallEnd.WHOLE

    def _give_up(self) -> CallEnd:
        """What is held is content; but whitespace alone may still stand before a call."""
        self._reread()
        if not "".join(self._held[:-1]).isspace():
            self._release(keep=1)
        return CallEnd.NO_CALL

    def _calls(self, separator: str | None, end_marker: str | None = None) -> Characters[bool]:
        """Calls one after another; whether there was any. What follows them is held."""
        is_any = False
        while True:
            end = yield from self._call(end_marker)
            if end is not CallEnd.WHOLE:
                return is_any or end is CallEnd.BROKEN
            is_any = True
            if separator is None:
                return True
            if (yield from self._next()) != separator:
                self._reread()
                return True

    def _list(self) -> Characters[bool]:
        """A JSON array of calls; whether there was any."""
        if (yield from self._next()) != "[":
            self._reread()
            return False
        is_any = yield from self._calls(",")
        if is_any and (yield from self._next()) == "]":
            self._held.clear()
        else:
            self._reread()
        return is_any

    def _json(self) -> Characters[Any]:
        """The next JSON value, or `_NOTHING` where none is; then the character that is wrong comes again."""
        value, text = JsonValue(), []
        while True:
            character = yield
            reading = value.read(character)
            if reading is Reading.MORE or reading is Reading.WHOLE:
                text.append(character)
            if reading is Reading.WRONG or reading is Reading.ENDED_BEFORE:
                self._reread()
            if reading is Reading.WRONG:
                return _NOTHING
            if reading is not Reading.MORE:
                return _decoded("".join(text))

    def _tell_arguments(self, end_marker: str | None) -> Characters[bool]:
        """The arguments of a call that is told; whether they are an object, else all up to the marker was taken."""
        value = JsonValue()
        self._has_open_arguments = True
        while True:
            character = yield
            reading = value.read(character)
            if reading is Reading.WRONG:
                self._reread()
                yield from self._tell_rest(end_marker)
                return False
            self._add_held_to_arguments()
            if reading is Reading.WHOLE:
                self._has_open_arguments = False
                return True

    def _tell_rest(self, end_marker: str | None) -> Characters[None]:
        """Arguments up to the marker, which is passed over, or to the end of the text."""
        matched = 0
        while True:
            character = yield
            if end_marker is None:
                self._add_held_to_arguments()
                continue
            if matched and character != end_marker[matched]:
                self._add_held_to_arguments(keep=1)
                matched = 0
            if character == end_marker[matched]:
                matched += 1
                if matched == len(end_marker):
                    self._end_call()
                    return
            elif not character.isspace():
                self._add_held_to_arguments()


_NOTHING: Final = object()


def _decoded(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # numbers of too many digits, and what is nested too deep
        return _NOTHING
    return _NOTHING if is_deeper(value) else value


def _object_text(arguments: Any) -> str | None:
    """Arguments that came as a whole: an object, the text of one as a string, or null for none."""
    if isinstance(arguments, str):
        return arguments if isinstance(_decoded(arguments), dict) else None
    if arguments is None:
        return "{}"
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else None
