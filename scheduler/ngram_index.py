"""NgramIndex: where the last few tokens of a text occurred in it before, and what followed them there.

Prompt lookup decoding (Saxena, 2023): whoever edits code, summarises or quotes repeats spans of the text so far, so
that what followed the same few tokens last time is a good guess of what follows now. Knows one text, as token ids, and
nothing of models or requests.

Invariants: each n-gram is entered once, when the text has grown past it, and found at its latest place; entering one
token takes a fixed number of steps; no more than ``MAX_INDEXED_TOKENS`` places are remembered, the latest ones. Two
n-grams with one hash are one to it: a guess may then be worse, which nobody notices but the counters.
"""

from __future__ import annotations

from collections.abc import Sequence

MIN_NGRAM, MAX_NGRAM = 2, 4  # tokens that must have occurred before; the longest are tried first
MAX_INDEXED_TOKENS = 8192


class NgramIndex:
    """Over one growing text; a text that lost tokens needs a new index."""

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}  # hash of an n-gram: the number of tokens up to its latest end
        self._num_indexed = 0

    def propose(self, token_ids: Sequence[int], limit: int) -> list[int]:
        """At most ``limit`` tokens that may follow ``token_ids``, all tokens of the text so far; none without a guess.

        Where the earlier place is so near that the text ends before ``limit`` tokens, the guess goes round: it
        continues with its own beginning, as a text does that repeats itself.
        """
        self._extend(token_ids)
        length = len(token_ids)
        for size in range(min(MAX_NGRAM, length - 1), MIN_NGRAM - 1, -1):
            end = self._ends.get(hash(tuple(token_ids[length - size :])))
            if end is not None:
                known = list(token_ids[end : end + limit])
                return [known[place % len(known)] for place in range(limit)]
        return []

    def __len__(self) -> int:
        """N-grams that can be found."""
        return len(self._ends)

    def _extend(self, token_ids: Sequence[int]) -> None:
        """Enter what ends before the last token: the last few tokens shall be found where they were earlier."""
        first = max(self._num_indexed + 1, len(token_ids) - MAX_INDEXED_TOKENS)
        for end in range(first, len(token_ids)):
            for size in range(MIN_NGRAM, min(MAX_NGRAM, end) + 1):
                self._ends[hash(tuple(token_ids[end - size : end]))] = end
            self._forget(token_ids, end - MAX_INDEXED_TOKENS)
        self._num_indexed = max(self._num_indexed, len(token_ids) - 1)

    def _forget(self, token_ids: Sequence[int], end: int) -> None:
        """Drop what ends at ``end`` and has not occurred since."""
        for size in range(MIN_NGRAM, min(MAX_NGRAM, end) + 1):
            key = hash(tuple(token_ids[end - size : end]))
            if self._ends.get(key) == end:
                del self._ends[key]
