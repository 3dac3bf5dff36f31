"""SamplingParams: how the tokens of a request are drawn, when they end, and what is told of them.

Plain msgspec structs that travel in an `EngineRequest`: no torch, no logic. The API has validated them.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

JSON_WHITESPACE: Final = r"[ \n\r\t]{1,40}"
"""What may stand between two tokens of JSON. Without a bound a model may go on with blanks until its limit."""


class GrammarKind(enum.StrEnum):
    """What the text of a `Grammar` is."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"  # any JSON object; no text
    REGEX = "regex"
    CHOICE = "choice"  # a JSON array of strings, one of which is the output
    LARK = "lark"  # or EBNF, as in GBNF files


class Grammar(msgspec.Struct, frozen=True):
    """The language that the output must be a word of."""

    kind: GrammarKind
    text: str = ""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is drawn and when to stop; validated by the API before it gets here.

    ``temperature`` 0 is greedy. ``top_k`` 0 and ``top_p`` 1 and ``min_p`` 0 switch their filters off. ``seed`` fixes
    the request's own generator; None draws one. ``stop_token_ids`` end the request beside the model's EOS ids, which
    ``ignore_eos`` switches off; neither is drawn among the first ``min_tokens`` tokens. ``max_tokens`` 0 reads the
    prompt and draws nothing.

    Before all filters and the temperature, logits change in this order: ``repetition_penalty`` divides positive logits
    of tokens that are in the prompt or the output and multiplies negative ones (Keskar et al., "CTRL", 2019);
    ``frequency_penalty`` is subtracted once for every occurrence in the output, ``presence_penalty`` once for any;
    ``logit_bias`` is added; what ``grammar`` or ``min_tokens`` forbids is minus infinity.

    ``logprobs``: tell the log probability of each token, and of so many most likely ones, under the model itself:
    before all that changes logits, without temperature and filters. None: tell nothing. ``rank`` asks for the sum, to
    choose among several samples.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    grammar: Grammar | None = None
    logprobs: int | None = None
    rank: bool = False

    @property
    def tells_logprobs(self) -> bool:
        """Whether log probabilities of its tokens are needed."""
        return self.rank or self.logprobs is not None


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities at one position, under the model itself.

    ``rank`` is the token's own place, 1 for the most likely. ``top_ids`` are the most likely tokens in order, equal
    ones by id, and ``top_logprobs`` theirs. All are finite float32 values, exactly the same for the same token.
    """

    logprob: float
    rank: int
    top_ids: list[int]
    top_logprobs: list[float]
