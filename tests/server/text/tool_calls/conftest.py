"""Whole messages read in one piece, and in all the pieces they can be cut into."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from server.text.tool_calls.formats import FORMATS
from server.text.tool_calls.parser import ParsedText, ToolOffer


@dataclass
class Message:
    """What a parser made of a text; calls are [id, name, arguments]."""

    content: str = ""
    calls: list[list[str]] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)

    def add(self, parsed: ParsedText) -> None:
        self.content += parsed.content
        for start, end in parsed.spans:
            if self.spans and self.spans[-1][1] == start:
                start = self.spans.pop()[0]
            self.spans.append((start, end))
        for delta in parsed.calls:
            if delta.id is not None:
                assert delta.index == len(self.calls)
                assert delta.name is not None
                self.calls.append([delta.id, delta.name, ""])
            else:
                assert delta.name is None
                assert delta.arguments
            self.calls[delta.index][2] += delta.arguments

    @property
    def named(self) -> list[tuple[str, str]]:
        return [(name, arguments) for _, name, arguments in self.calls]


Read = Callable[..., Message]


@pytest.fixture
def read() -> Read:
    """Reads a text in pieces with the parser of a format."""

    def read(name: str, *pieces: str, names: Sequence[str] = ("f", "g"), single: bool = False, cut=False) -> Message:
        ids = map("id{}".format, itertools.count())
        parser = FORMATS[name].parser(ToolOffer(names=names, make_id=lambda: next(ids), is_single=single))
        message = Message()
        for piece in pieces:
            message.add(parser.feed(piece))
        message.add(parser.finish(is_cut=cut))
        assert len(message.calls) == parser.num_calls
        text = "".join(pieces)
        assert "".join(text[start:end] for start, end in message.spans) == message.content
        return message

    return read
