"""ReasoningSplitter: parts the reasoning that a model writes before its answer from the answer.

Knows tags and nothing of tokens or the API. Invariants: reasoning stands at the beginning of the text, or nowhere; the
result depends on the text alone, never on how it was cut into deltas; whitespace next to a tag is dropped, everything
else is told once, in order; held back is only what may be a tag, with the whitespace before it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """What stands before and after reasoning; the first character of ``close`` is in no other place of it."""

    name: str
    open: str
    close: str

    def is_open_at_end(self, prompt: str) -> bool:
        """Whether a prompt ends inside of reasoning that has just begun."""
        return prompt.rstrip().endswith(self.open)


THINK: Final = ReasoningTags("think", "<think>", "</think>")
MISTRAL: Final = ReasoningTags("mistral", "[THINK]", "[/THINK]")

REASONING_TAGS: Final[Mapping[str, ReasoningTags]] = {one.name: one for one in (THINK, MISTRAL)}


def detect_tags(template: str) -> ReasoningTags | None:
    """The tags that a chat template knows."""
    return next((one for one in REASONING_TAGS.values() if one.open in template or one.close in template), None)


class _Place(enum.Enum):
    START = enum.auto()
    REASONING_START = enum.auto()
    REASONING = enum.auto()
    ANSWER_START = enum.auto()
    ANSWER = enum.auto()


@dataclass(frozen=True, slots=True)
class SplitText:
    """What new text brought."""

    reasoning: str
    answer: str


class ReasoningSplitter:
    """One message. ``is_open``: the prompt has opened the reasoning. ``num_skipped``: characters before the answer."""

    def __init__(self, tags: ReasoningTags, *, is_open: bool) -> None:
        self.num_skipped = 0
        self._tags = tags
        self._place = _Place.REASONING_START if is_open else _Place.START
        self._reasoning: list[str] = []
        self._held: list[str] = []
        self._matched = 0  # characters of a tag, at the end of what is held

    @property
    def is_reasoning(self) -> bool:
        """Whether what comes next is still reasoning, as far as is known."""
        return self._place in (_Place.REASONING_START, _Place.REASONING)

    def feed(self, text: str) -> SplitText:
        """What ``text`` brings."""
        if self._is_answering():
            return SplitText("", text)
        for position, character in enumerate(text, 1):
            self.num_skipped += 1
            self._read(character)
            if self._is_answering():
                answer = self._take_held() + text[position:]
                return SplitText(self._take_reasoning(), answer)
        return SplitText(self._take_reasoning(), "")

    def finish(self) -> SplitText:
        """What was held back at the end of the text."""
        if self._place is _Place.START:
            return SplitText("", self._take_held())
        self._reasoning += self._held
        self._held.clear()
        return SplitText(self._take_reasoning(), "")

    def _is_answering(self) -> bool:
        return self._place is _Place.ANSWER

    def _take_held(self) -> str:
        self.num_skipped -= len(self._held)
        answer = "".join(self._held)
        self._held.clear()
        return answer

    def _take_reasoning(self) -> str:
        reasoning = "".join(self._reasoning)
        self._reasoning.clear()
        return reasoning

    def _read(self, character: str) -> None:
        if self._place is _Place.START:
            self._find_reasoning(character)
        elif self._place is _Place.ANSWER_START:
            if not character.isspace():
                self._held.append(character)
                self._place = _Place.ANSWER
        elif self._place is _Place.REASONING or not character.isspace():
            self._place = _Place.REASONING
            self._read_reasoning(character)

    def _find_reasoning(self, character: str) -> None:
        self._held.append(character)
        if character == self._tags.open[self._matched]:
            self._matched += 1
            if self._matched == len(self._tags.open):
                self._go_on_to(_Place.REASONING_START)
        elif self._matched or not character.isspace():
            self._place = _Place.ANSWER

    def _read_reasoning(self, character: str) -> None:
        if self._matched and character != self._tags.close[self._matched]:
            self._reasoning += self._held
            self._held.clear()
            self._matched = 0
        self._held.append(character)
        if character == self._tags.close[self._matched]:
            self._matched += 1
            if self._matched == len(self._tags.close):
                self._go_on_to(_Place.ANSWER_START)
        elif not character.isspace():
            self._reasoning += self._held
            self._held.clear()

    def _go_on_to(self, place: _Place) -> None:
        self._held.clear()
        self._matched = 0
        self._place = place
