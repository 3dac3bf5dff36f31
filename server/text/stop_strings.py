"""Finds stop strings in text that arrives in pieces, and never lets any part of the one it finds through.

Knows nothing of tokens or requests: it is fed the generated text only, so a stop string in the prompt is never seen.

- The stop string that is *complete first* wins; of several complete at the same character the longest, so that nothing
  of any of them remains. The result depends on the text alone, never on how it was cut into deltas.
- What is held back is always the longest tail of the text that is a proper prefix of some stop string, and no more.
- Time is linear in the text, whatever the length of the stop strings: one Knuth-Morris-Pratt automaton for each
  (Knuth, Morris and Pratt, "Fast pattern matching in strings", 1977).
"""

from __future__ import annotations

from collections.abc import Sequence


class _StopString:
    """One stop string and how much of it the text now ends with."""

    __slots__ = ("_fallback", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._fallback = _prefix_function(text)

    def feed(self, delta: str) -> int | None:
        """Advance over ``delta``; the number of its characters read when the stop string became complete."""
        text, fallback, matched = self.text, self._fallback, self.matched
        position, end = 0, len(delta)
        while position < end:
            if matched == 0:
                position = delta.find(text[0], position)
                if position < 0:
                    break
            character = delta[position]
            while matched and text[matched] != character:
                matched = fallback[matched - 1]
            if text[matched] == character:
                matched += 1
            position += 1
            if matched == len(text):
                self.matched = matched
                return position
        self.matched = matched
        return None


def _prefix_function(text: str) -> list[int]:
    """Entry i: the length of the longest proper prefix of ``text[: i + 1]`` that is also its suffix."""
    lengths = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = lengths[length - 1]
        if text[index] == text[length]:
            length += 1
        lengths[index] = length
    return lengths


class StopMatcher:
    """Passes text through until a stop string appears.

    ``matched`` is the stop string found, or None. Raises ValueError for an empty stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise ValueError("A stop string must not be empty.")
        self.matched: str | None = None
        self._stops = [_StopString(text) for text in dict.fromkeys(stops)]
        self._first_characters = frozenset(text[0] for text in stops)
        # The held text is a prefix of a stop string, so a length says it all: nothing is copied while it grows.
        self._held_prefix_of = ""
        self._held_length = 0

    def feed(self, delta: str) -> str:
        """The text that is now known to lie before any stop string; nothing once one has matched."""
        if self.matched is not None:
            return ""
        if not self._held_length and self._first_characters.isdisjoint(delta):
            return delta  # as nearly all of a text is
        ends = [(end, stop) for stop in self._stops if (end := stop.feed(delta)) is not None]
        if ends:
            first_end = min(end for end, _ in ends)
            self.matched = max((stop.text for end, stop in ends if end == first_end), key=len)
            emitted = self._before(delta, self._held_length + first_end - len(self.matched))
            self._held_length = 0
            return emitted
        longest = max(self._stops, key=lambda stop: stop.matched, default=None)
        if longest is None:
            return delta
        emitted = self._before(delta, self._held_length + len(delta) - longest.matched)
        self._held_prefix_of, self._held_length = longest.text, longest.matched
        return emitted

    def flush(self) -> str:
        """End the text: whatever was held back, since no stop string can complete any more."""
        held = self._held_prefix_of[: self._held_length]
        self._held_length = 0
        return held

    def _before(self, delta: str, length: int) -> str:
        """The first ``length`` characters of the held text followed by ``delta``."""
        if length <= self._held_length:
            return self._held_prefix_of[:length]
        return self._held_prefix_of[: self._held_length] + delta[: length - self._held_length]
