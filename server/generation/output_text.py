"""OutputText: the text of one sequence, made of its tokens as they come.

Joins the detokenizer, the search for stop strings, and the log probabilities of tokens, which come with their text.
Knows neither the engine nor the endpoints. Invariants: text is held back only while it is a prefix of a stop string or
part of a character; a token is told together with the text it completes, and never one that lies behind the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.sampling_params import TokenLogprobs
from server.generation.token_logprob import LikelyToken, TokenLogprob
from server.text.detokenizer import Detokenizer
from server.text.stop_strings import StopMatcher
from server.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRules:
    """What of the tokens becomes text. ``min_tokens``: so many tokens are not searched for ``stops``.

    ``includes_stop``: the stop string, or the text of the stop token, stays in the text. ``shown_token_ids`` become
    text though they are special.
    """

    stops: Sequence[str] = ()
    includes_stop: bool = False
    skips_special_tokens: bool = True
    min_tokens: int = 0
    shown_token_ids: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Untold:
    """A token whose text was not let through yet; ``num_held_bytes`` of its first character came before it."""

    token: TokenLogprob
    num_held_bytes: int


class OutputText:
    """The text of one sequence, as it grows. ``stop`` is the stop string that ended it, or None.

    ``num_tokens`` counts the tokens fed, those behind a stop string excepted.
    """

    def __init__(self, tokenizer: Tokenizer, rules: TextRules) -> None:
        self.num_tokens = 0
        self.stop: str | None = None
        self._tokenizer = tokenizer
        self._rules = rules
        self._detokenizer = Detokenizer(
            tokenizer, skip_special_tokens=rules.skips_special_tokens, shown_token_ids=rules.shown_token_ids
        )
        self._matcher = StopMatcher(rules.stops) if rules.stops else None
        self._fed = self._told = 0  # characters of the choice: those of the tokens fed, those let through
        self._untold: list[_Untold] = []

    def begin_after(self, text: str) -> None:
        """The choice begins with ``text``; before the first token."""
        self._fed = self._told = len(text)

    def feed(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> str:
        """The text these tokens bring, up to a stop string; ``logprobs`` has one entry for each, or none."""
        if self._matcher is None and not logprobs:
            self.num_tokens += len(token_ids)
            return self._detokenizer.feed(token_ids)
        text = ""
        for place, token_id in enumerate(token_ids):
            self.num_tokens += 1
            num_held_bytes = self._detokenizer.num_held_bytes if logprobs else 0
            piece = self._detokenizer.feed((token_id,))
            if logprobs:
                self._note(token_id, piece, logprobs[place], num_held_bytes)
            text += self._let_through(piece)
            if self.stop is not None:
                self._drop_untold()
                break
        return text

    def finish(self) -> str:
        """What was held back: the rest of a cut character, then the start of a stop string that never came."""
        tail = self._detokenizer.finish()
        if tail and self._untold:
            last = self._untold[-1].token
            self._untold[-1].token = replace(last, text=last.text + tail)
            self._fed += len(tail)
        text = tail if self._matcher is None else self._matcher.feed(tail) + self._matcher.flush()
        self._told += len(text)
        return text

    def end_by(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        """Count the token that ended the sequence, which is no text; after `finish`."""
        self.num_tokens += len(token_ids)
        for token_id, one in zip(token_ids, logprobs, strict=False):
            self._untold.append(_Untold(self._rated(token_id, "", b"", one), 0))

    def take_logprobs(self, *, at_end: bool = False) -> tuple[TokenLogprob, ...]:
        """The tokens whose text was let through since the last call; ``at_end`` those without text too."""
        end = len(self._untold)
        while not at_end and end and not self._is_told(self._untold[end - 1].token):
            end -= 1
        told = tuple(one.token for one in self._untold[:end])
        del self._untold[:end]
        return told

    def _is_told(self, token: TokenLogprob) -> bool:
        return token.text != "" and token.offset + len(token.text) <= self._told

    def _note(self, token_id: int, piece: str, logprobs: TokenLogprobs, num_held_bytes: int) -> None:
        content = b"" if self._detokenizer.hides(token_id) else self._tokenizer.token_bytes(token_id)
        self._untold.append(_Untold(self._rated(token_id, piece, content, logprobs), num_held_bytes))
        self._fed += len(piece)

    def _rated(self, token_id: int, piece: str, content: bytes, logprobs: TokenLogprobs) -> TokenLogprob:
        top = likely_tokens(self._tokenizer, logprobs)
        return TokenLogprob(token_id, piece, content, self._fed, logprobs.logprob, logprobs.rank, top)

    def _let_through(self, piece: str) -> str:
        text = piece
        if self._matcher is not None and self.num_tokens > self._rules.min_tokens:
            text = self._matcher.feed(piece)
            self.stop = self._matcher.matched
            if self.stop is not None and self._rules.includes_stop:
                text += self.stop
        self._told += len(text)
        return text

    def _drop_untold(self) -> None:
        """Forget the tokens behind the end of the text, and cut the one it is in."""
        for place, one in enumerate(self._untold):
            visible = self._told - one.token.offset
            if visible <= 0:
                del self._untold[place:]
                return
            if visible < len(one.token.text):
                text = one.token.text[:visible]
                num_bytes = max(len(text.encode()) - one.num_held_bytes, 0)
                one.token = replace(one.token, text=text, content=one.token.content[:num_bytes])


def likely_tokens(tokenizer: Tokenizer, logprobs: TokenLogprobs, limit: int | None = None) -> tuple[LikelyToken, ...]:
    """The most likely tokens at a position, at most ``limit``, with their bytes."""
    pairs = zip(logprobs.top_ids[:limit], logprobs.top_logprobs[:limit], strict=True)
    return tuple(LikelyToken(token_id, tokenizer.token_bytes(token_id), logprob) for token_id, logprob in pairs)
