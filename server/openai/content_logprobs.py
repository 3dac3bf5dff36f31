"""ContentLogprobs: the log probabilities of the tokens that a message's content consists of.

Knows where in the text the content is, and which token stands where. Invariant: joined, the bytes of the tokens told
are those of the content, but for a token that is part content and part marker, which is told whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from server.generation.token_logprob import LikelyToken, TokenLogprob, spell

Span = tuple[int, int]


class ContentLogprobs:
    """Those of one choice, in the order of the text."""

    def __init__(self) -> None:
        self._untold: deque[TokenLogprob] = deque()
        self._spans: deque[Span] = deque()

    def feed(self, tokens: Iterable[TokenLogprob], spans: Iterable[Span]) -> tuple[TokenLogprob, ...]:
        """The tokens of content, up to the end of the latest span; ``spans`` are in characters of the whole text."""
        self._untold.extend(tokens)
        self._spans.extend(spans)
        told = []
        while self._untold and self._spans:
            token = self._untold[0]
            start, end = self._spans[0]
            if token.offset >= end:
                self._spans.popleft()
                continue
            self._untold.popleft()
            if max(token.offset + len(token.text), token.offset + 1) > start:
                told.append(token)
        return tuple(told)


def logprobs_body(tokens: Sequence[TokenLogprob]) -> dict[str, object]:
    """The ``logprobs`` object of these tokens."""
    return {"content": [token_body(token) for token in tokens], "refusal": None}


def token_body(token: TokenLogprob) -> dict[str, object]:
    """One token of a ``logprobs`` object."""
    return {
        "token": spell(token.content),
        "logprob": token.logprob,
        "bytes": list(token.content),
        "top_logprobs": [_likely_body(one) for one in token.top],
    }


def _likely_body(token: LikelyToken) -> dict[str, object]:
    return {"token": spell(token.content), "logprob": token.logprob, "bytes": list(token.content)}
