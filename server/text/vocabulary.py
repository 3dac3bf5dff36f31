"""What a tokenizer must know about its vocabulary, whichever file it came from.

A value without behaviour: `hf_vocabulary` and `gguf_vocabulary` make one, `tokenizer` uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tokenizers

from server.text.token_spelling import TokenSpelling


@dataclass(frozen=True)
class Vocabulary:
    """A compiled tokenizer with the facts about its tokens.

    ``backend`` splits text into ids. ``token_text`` gives a token's spelling, None for an id without a token, and
    ``verbatim_ids`` are the tokens whose spelling is their text. ``prefix_ids`` and ``suffix_ids`` go around each
    prompt (mostly BOS and nothing). ``special_tokens`` maps template variables (``bos_token``, ...) to texts.
    """

    backend: tokenizers.Tokenizer
    spelling: TokenSpelling
    token_text: Callable[[int], str | None]
    size: int
    special_ids: frozenset[int]
    verbatim_ids: frozenset[int]
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    special_tokens: Mapping[str, str]
