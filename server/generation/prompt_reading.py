"""PromptReading: what the samples of one prompt tell of the prompt itself.

Its text, for an echo, and the log probabilities of its tokens, which the engine tells the first sample. Invariants: a
sample reads them only when they are complete; the text of the prompt's tokens, joined, is the echoed text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.sampling_params import TokenLogprobs
from server.generation.output_text import likely_tokens
from server.generation.token_logprob import TokenLogprob
from server.text.detokenizer import Detokenizer
from server.text.tokenizer import Tokenizer


@dataclass(slots=True, kw_only=True)
class PromptReading:
    """One prompt. ``echoes``: its text begins each choice, with its tokens' log probabilities unless ``num_top`` is
    None. ``tells_logprobs``: the engine was asked for ``positions``, one for each token, None for the first.
    """

    tokenizer: Tokenizer
    token_ids: Sequence[int]
    echoes: bool = False
    num_top: int | None = None
    tells_logprobs: bool = False
    positions: list[TokenLogprobs | None] = field(default_factory=list)
    _complete: asyncio.Event = field(default_factory=asyncio.Event)

    def feed(self, piece: Sequence[TokenLogprobs | None]) -> None:
        """Add what the engine tells, in the order of the prompt."""
        self.positions += piece
        if self.is_complete:
            self._complete.set()

    @property
    def is_complete(self) -> bool:
        """Whether the engine has told all it was asked for."""
        return not self.tells_logprobs or len(self.positions) == len(self.token_ids)

    async def until_complete(self) -> None:
        if not self.is_complete:
            await self._complete.wait()

    def text(self) -> str:
        """The echoed text."""
        return "".join(self._pieces()) if self.echoes else ""

    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Those of the echoed text; empty where none were asked for."""
        if not self.echoes or self.num_top is None:
            return ()
        told = []
        offset = 0
        hidden = self._num_hidden
        for place, (token_id, piece) in enumerate(zip(self.token_ids, self._pieces(), strict=True)):
            one = self.positions[place]
            logprob, rank = (None, None) if one is None else (one.logprob, one.rank)
            top = () if one is None else likely_tokens(self.tokenizer, one, self.num_top)
            content = b"" if place < hidden else self.tokenizer.token_bytes(token_id)
            told.append(TokenLogprob(token_id, piece, content, offset, logprob, rank, top))
            offset += len(piece)
        return tuple(told)

    def _pieces(self) -> Sequence[str]:
        """What each token adds to the text: all but the BOS and the space that a tokenizer puts in front."""
        detokenizer = Detokenizer(self.tokenizer, skip_special_tokens=False)
        pieces = [detokenizer.feed((token_id,)) for token_id in self.token_ids]
        pieces[-1] += detokenizer.finish()
        hidden = self._num_hidden
        pieces[:hidden] = [""] * hidden
        whole = self.tokenizer.decode(self.token_ids[hidden:], skip_special_tokens=False)
        if "".join(pieces) != whole:
            pieces[hidden] = pieces[hidden].removeprefix(" ")
        return pieces

    @property
    def _num_hidden(self) -> int:
        """1 where the prompt begins with the BOS that the tokenizer puts there, else 0."""
        return int(self.tokenizer.adds_bos and self.token_ids[0] == self.tokenizer.bos_token_id)
