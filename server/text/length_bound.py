"""How many bytes of text one token can stand for at most, for vocabularies where that is certain.

Knows vocabularies only. Invariant: a bound is given only where every byte of a text ends up in some token: no
normalizer or pre-tokenizer that drops or joins text, no token that swallows the spaces around it, and a token for each
byte, so that nothing unknown is dropped or merged into one token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tokenizers import models

from server.text.token_spelling import BYTE_LEVEL_ALPHABET, METASPACE, TokenSpelling, spelled_bytes
from server.text.vocabulary import Vocabulary

_LOSSLESS: Final = frozenset({"Prepend", "ByteLevel", "Metaspace", "Digits"})
_MOST_BYTES: Final = 4  # of a character in UTF-8
_SPACE_SPELLINGS: Final = (({"String": " "}, METASPACE),)


def text_bytes(text: str) -> int:
    """The size of ``text`` in UTF-8, a U+2581 counted as the space that some vocabularies take it for."""
    return len(text.encode("utf-8", "surrogatepass")) - 2 * text.count(METASPACE)


def longest_token_bytes(vocabulary: Vocabulary) -> int | None:
    """Most `text_bytes` that one token can stand for; None where nothing certain is known."""
    backend = vocabulary.backend
    parts = [*_parts(backend.normalizer), *_parts(backend.pre_tokenizer)]
    if not all(map(_keeps_all_text, parts)) or not _has_all_bytes(backend, vocabulary.spelling):
        return None
    if any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()):
        return None
    longest = max((text_bytes(token.content) for token in backend.get_added_tokens_decoder().values()), default=0)
    for piece in filter(None, map(vocabulary.token_text, range(vocabulary.size))):
        if len(piece) * _MOST_BYTES > longest:  # else there is no need to spell it, which takes longer than all else
            longest = max(longest, len(spelled_bytes(piece, vocabulary.spelling)))
    return longest


def _parts(component: Any) -> Iterator[Mapping[str, Any]]:
    """A normalizer or pre-tokenizer, taken apart."""
    description = {} if component is None else json.loads(component.__getstate__())
    yield from _flattened(description)


def _flattened(description: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if description.get("type") == "Sequence":
        for part in description.get("normalizers", []) + description.get("pretokenizers", []):
            yield from _flattened(part)
    elif description:
        yield description


def _keeps_all_text(part: Mapping[str, Any]) -> bool:
    if part["type"] == "Replace":
        return (part["pattern"], part["content"]) in _SPACE_SPELLINGS
    if part["type"] in ("Split", "Punctuation"):
        return bool(part["behavior"] != "Removed")
    return part["type"] in _LOSSLESS


def _has_all_bytes(backend: Any, spelling: TokenSpelling) -> bool:
    model = backend.model
    if not isinstance(model, models.BPE):
        return False
    if spelling is TokenSpelling.BYTE_LEVEL:
        return all(backend.token_to_id(character) is not None for character in BYTE_LEVEL_ALPHABET)
    return bool(model.byte_fallback) and all(backend.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256))
