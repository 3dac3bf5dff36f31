"""MessageParser: a model's text as an assistant's message of reasoning, content and tool calls, as it comes.

Joins the two parsers, either of which may be absent. Invariants: the result depends on the text alone, never on how it
was cut into deltas; text of a model that does neither passes as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.text.reasoning import ReasoningSplitter, SplitText
from server.text.tool_calls.call import ToolCallDelta
from server.text.tool_calls.parser import ParsedText, ToolCallParser


@dataclass(frozen=True, slots=True)
class MessageDelta:
    """More of a message, perhaps nothing; ``spans`` say from where to where in all the text its content is."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()


class MessageParser:
    """One message."""

    def __init__(self, reasoning: ReasoningSplitter | None, tool_calls: ToolCallParser | None) -> None:
        self._reasoning = reasoning
        self._tool_calls = tool_calls
        self._num_characters = 0

    @property
    def num_calls(self) -> int:
        """Calls told so far."""
        return self._tool_calls.num_calls if self._tool_calls is not None else 0

    @property
    def is_reasoning(self) -> bool:
        """Whether what comes next is still reasoning, as far as is known."""
        return self._reasoning is not None and self._reasoning.is_reasoning

    def feed(self, text: str) -> MessageDelta:
        """What ``text`` brings."""
        split = SplitText("", text) if self._reasoning is None else self._reasoning.feed(text)
        return self._delta(split, self._parse(split.answer))

    def finish(self, *, is_cut: bool) -> MessageDelta:
        """What was held back at the end of the text; ``is_cut`` as in `ToolCallParser.finish`."""
        split = SplitText("", "") if self._reasoning is None else self._reasoning.finish()
        parsed = self._parse(split.answer)
        if self._tool_calls is not None:
            last = self._tool_calls.finish(is_cut=is_cut)
            parsed = ParsedText(parsed.content + last.content, parsed.calls + last.calls, parsed.spans + last.spans)
        return self._delta(split, parsed)

    def _parse(self, answer: str) -> ParsedText:
        if self._tool_calls is not None:
            return self._tool_calls.feed(answer)
        start = self._num_characters
        self._num_characters += len(answer)
        return ParsedText(answer, (), ((start, self._num_characters),) if answer else ())

    def _delta(self, split: SplitText, parsed: ParsedText) -> MessageDelta:
        before = self._reasoning.num_skipped if self._reasoning is not None else 0
        spans = tuple((start + before, end + before) for start, end in parsed.spans)
        return MessageDelta(parsed.content, split.reasoning, parsed.calls, spans)
