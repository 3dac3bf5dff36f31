"""Turns a stream of token ids into text deltas, byte-exactly and in constant time per token.

Knows nothing of models or stop strings. Invariants: the deltas of one stream, joined with what `finish` returns, equal
the bytes of all its tokens decoded at once (UTF-8, each invalid sequence one or more U+FFFD as Python's "replace" has
it); a character that is still incomplete is held back, so no delta shows U+FFFD for it; a stream that ends inside a
character ends in exactly one U+FFFD.

The first delta keeps its leading space: generated text continues a prompt. `Tokenizer.decode` is for whole texts.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from typing import Protocol


class TokenBytes(Protocol):
    """What a detokenizer needs to know of a vocabulary."""

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token."""

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control token rather than text."""


class Detokenizer:
    """The text of one generated sequence, as it grows. ``shown_token_ids`` are not skipped, special or not."""

    def __init__(
        self, vocabulary: TokenBytes, *, skip_special_tokens: bool = True, shown_token_ids: Collection[int] = ()
    ) -> None:
        self._vocabulary = vocabulary
        self._skip_special_tokens = skip_special_tokens
        self._shown_token_ids = shown_token_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_between_characters = True

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that ``token_ids`` complete; empty while a character is unfinished."""
        content = self._content(token_ids)
        if self._is_between_characters and content.isascii():
            return str(content, "ascii")
        text = self._decoder.decode(content)
        self._is_between_characters = not self._decoder.getstate()[0]
        return text

    def _content(self, token_ids: Sequence[int]) -> bytes:
        vocabulary = self._vocabulary
        if len(token_ids) == 1 and not vocabulary.is_special(token_ids[0]):
            return vocabulary.token_bytes(token_ids[0])
        return b"".join(vocabulary.token_bytes(token_id) for token_id in token_ids if not self.hides(token_id))

    def hides(self, token_id: int) -> bool:
        """Whether the token is a control token that adds nothing to the text."""
        return (
            self._skip_special_tokens
            and self._vocabulary.is_special(token_id)
            and token_id not in self._shown_token_ids
        )

    @property
    def num_held_bytes(self) -> int:
        """Bytes of an unfinished character."""
        return len(self._decoder.getstate()[0])

    def finish(self) -> str:
        """End the stream: one U+FFFD if it ended inside a character, else nothing."""
        return self._decoder.decode(b"", final=True)
