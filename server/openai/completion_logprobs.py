"""The ``logprobs`` of a completion and its ``prompt_logprobs``, in the API's words.

Invariants: joined, ``tokens`` is the text; a value in ``token_logprobs`` is the very number that ``top_logprobs`` has
for that token; no likely token is lost because its text is another's.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.sampling_params import TokenLogprobs
from server.generation.output_text import likely_tokens
from server.generation.prompt_reading import PromptReading
from server.generation.token_logprob import TokenLogprob, spell
from server.text.tokenizer import Tokenizer


def logprobs_body(tokens: Sequence[TokenLogprob]) -> dict[str, object]:
    """The ``logprobs`` object of these tokens."""
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [_top(token) for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }


def _top(token: TokenLogprob) -> dict[str, float] | None:
    """By text, the token itself under the text it added; of two with one text, the later is ``token_id:N``."""
    if token.logprob is None:
        return None
    logprobs = {token.text: token.logprob}
    for likely in token.top:
        if likely.token_id != token.token_id:
            text = spell(likely.content)
            logprobs[f"token_id:{likely.token_id}" if text in logprobs else text] = likely.logprob
    return logprobs


def prompt_logprobs_body(prompt: PromptReading, num_top: int) -> list[dict[str, object] | None]:
    """For each token of the prompt the ``num_top`` most likely ones and itself, by id; null for the first."""
    return [
        None if one is None else _position(prompt.tokenizer, token_id, one, num_top)
        for token_id, one in zip(prompt.token_ids, prompt.positions, strict=True)
    ]


def _position(tokenizer: Tokenizer, token_id: int, one: TokenLogprobs, num_top: int) -> dict[str, object]:
    ranked = [(token_id, one.logprob, one.rank)]
    for rank, likely in enumerate(likely_tokens(tokenizer, one, num_top), 1):
        if likely.token_id != token_id:
            ranked.append((likely.token_id, likely.logprob, rank))
    return {
        str(id_): {"logprob": logprob, "rank": rank, "decoded_token": spell(tokenizer.token_bytes(id_))}
        for id_, logprob, rank in ranked
    }
