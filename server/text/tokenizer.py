"""Tokenizer: text to token ids and back, for every vocabulary Octavo reads.

Knows nothing of requests or models. Thread-safe once built.

- The text of a special token inside a prompt becomes that token, as chat templates need and as Hugging Face tokenizers
  do by default. Whoever must keep users from writing control tokens has to filter their text.
- `encode` puts around the text what the model was trained with (BOS for most); `encode_chat` puts BOS in front only if
  the rendered template did not. Neither ever removes a token.
- `token_bytes` is exact: the bytes of a text's tokens, joined, are the text's UTF-8 (after the vocabulary's own
  normalization, if it has one, and with the leading space some SentencePiece vocabularies add).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from server.text.errors import TokenizerError
from server.text.gguf_vocabulary import load_gguf
from server.text.hf_vocabulary import load_directory
from server.text.length_bound import longest_token_bytes
from server.text.token_spelling import spelled_bytes
from server.text.vocabulary import Vocabulary


class Tokenizer:
    """One vocabulary, ready to encode and decode."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._bytes: dict[int, bytes] = {}
        self.longest_token_bytes = longest_token_bytes(vocabulary)
        self._adds_space = self._join(self._encode("a")).startswith(b" ")

    @classmethod
    def from_directory(cls, directory: str | Path, *, cache_directory: Path | None = None) -> Tokenizer:
        """Load a model directory in Hugging Face layout; raises TokenizerError."""
        return cls(load_directory(Path(directory), cache_directory))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object], *, cache_directory: Path | None = None) -> Tokenizer:
        """Compile the vocabulary in GGUF ``metadata`` (key -> value); raises TokenizerError."""
        return cls(load_gguf(metadata, cache_directory))

    @property
    def vocab_size(self) -> int:
        """Number of token ids, special ones included; a model may have more rows than that."""
        return self._vocabulary.size

    @property
    def kind(self) -> str:
        """How the vocabulary writes bytes: "byte-level", "sentencepiece" or "sentencepiece without byte pieces"."""
        return self._vocabulary.spelling.value

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, if the vocabulary has one."""
        return self._vocabulary.bos_token_id

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that the vocabulary itself says end a text or a turn; a model's generation config may add more."""
        return self._vocabulary.eos_token_ids

    @property
    def adds_bos(self) -> bool:
        """Whether `encode` begins with BOS."""
        return self.bos_token_id is not None and self._vocabulary.prefix_ids[:1] == (self.bos_token_id,)

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Texts of the named special tokens (``bos_token``, ``eos_token``, ...), as chat templates refer to them."""
        return self._vocabulary.special_tokens

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of ``text``, with BOS (and whatever else the model was trained with) unless switched off.

        Raises TokenizerError if ``text`` holds a lone surrogate.
        """
        ids = self._encode(text)
        if not add_special_tokens:
            return ids
        return [*self._vocabulary.prefix_ids, *ids, *self._vocabulary.suffix_ids]

    def encode_chat(self, text: str) -> list[int]:
        """The ids of a rendered chat template, with BOS in front if the model wants it and ``text`` lacks it."""
        ids = self._encode(text)
        if self.adds_bos and ids[:1] != [self.bos_token_id]:
            ids.insert(0, self._vocabulary.prefix_ids[0])
        return ids

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence, without the space that `encode` put before it; invalid UTF-8 shows as U+FFFD.

        For text generated after a prompt use `Detokenizer`, which keeps a leading space.
        """
        content = self._join(i for i in token_ids if not (skip_special_tokens and self.is_special(i)))
        if self._adds_space:
            content = content.removeprefix(b" ")
        return content.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token; empty for an id that has none, such as a padding row of the model."""
        content = self._bytes.get(token_id)
        if content is None:
            content = self._bytes[token_id] = self._spelled(token_id)
        return content

    def spelling(self, token_id: int) -> str | None:
        """The token as its vocabulary writes it, spaces and bytes in disguise; None for an id that has no token."""
        return self._vocabulary.token_text(token_id)

    def token_id(self, spelling: str) -> int | None:
        """The token that the vocabulary writes like this, if there is one."""
        token_id: int | None = self._vocabulary.backend.token_to_id(spelling)
        return token_id

    def text_bytes(self) -> list[bytes]:
        """The exact bytes of every token inside a text, by id; nothing for tokens that are not text. Takes a while."""
        spelled = (self._spelled(token_id) for token_id in range(self.vocab_size))
        return [b"" if self.is_special(token_id) else content for token_id, content in enumerate(spelled)]

    def is_special(self, token_id: int) -> bool:
        """Whether the token controls the model rather than standing for text."""
        return token_id in self._vocabulary.special_ids

    def _encode(self, text: str) -> list[int]:
        try:
            ids: list[int] = self._vocabulary.backend.encode(text, add_special_tokens=False).ids
        except TypeError as error:
            raise TokenizerError("The text holds a lone surrogate, which is no Unicode character.") from error
        return ids

    def _join(self, token_ids: Iterable[int]) -> bytes:
        return b"".join(map(self.token_bytes, token_ids))

    def _spelled(self, token_id: int) -> bytes:
        text = self._vocabulary.token_text(token_id)
        if text is None:
            return b""
        if token_id in self._vocabulary.verbatim_ids:
            return text.encode("utf-8", "replace")
        return spelled_bytes(text, self._vocabulary.spelling)
