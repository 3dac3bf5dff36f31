"""Reads what a model directory says of its tokenizer beside the vocabulary itself.

That is ``tokenizer_config.json``; where it lists no added tokens, also the older ``special_tokens_map.json`` and
``added_tokens.json``. Knows which tokens are added, special and named, and no vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from server.text.errors import TokenizerError


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """``named`` maps ``bos_token`` and its like to texts; ``specials`` are further texts of special tokens.

    ``added`` maps ids to the tokens that are cut out of a text before all else. ``tokenizer_class`` is transformers'
    name for the kind of vocabulary, without "Fast". ``adds_bos`` and ``adds_eos`` hold where there is no
    ``tokenizer.json``.
    """

    named: Mapping[str, str] = field(default_factory=dict)
    specials: tuple[str, ...] = ()
    added: Mapping[int, AddedToken] = field(default_factory=dict)
    tokenizer_class: str | None = None
    adds_bos: bool = False
    adds_eos: bool = False
    is_legacy: bool | None = None
    """Whether the space that a SentencePiece vocabulary adds goes before every stretch of text, or the first only; None
    where nothing is said."""


def read_tokenizer_config(directory: Path) -> TokenizerConfig:
    """What ``directory`` says; all defaults if there is nothing. Raises TokenizerError for a file that is broken."""
    content = dict(read_json(directory / "tokenizer_config.json"))
    decoder = content.get("added_tokens_decoder")
    if not isinstance(decoder, Mapping):
        content.update(read_json(directory / "special_tokens_map.json"))
    named = {name: text for name, value in content.items() if name.endswith("_token") and (text := _text(value))}
    specials = tuple(_more_specials(content))
    name, legacy = content.get("tokenizer_class"), content.get("legacy")
    return TokenizerConfig(
        named=named,
        specials=specials,
        added=_added(directory, decoder, {*named.values(), *specials}),
        tokenizer_class=name.removesuffix("Fast") if isinstance(name, str) else None,
        adds_bos=content.get("add_bos_token") is True,
        adds_eos=content.get("add_eos_token") is True,
        is_legacy=legacy if isinstance(legacy, bool) else None,
    )


def read_json(path: Path) -> Mapping[str, Any]:
    """The JSON object in ``path``; empty if there is no such file. Raises TokenizerError if it is broken."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} must hold a JSON object.")
    return content


def _text(value: object) -> str | None:
    """A special token's text, given as a string or as an object with its ``content``."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _more_specials(content: Mapping[str, Any]) -> Iterator[str]:
    more = content.get("extra_special_tokens") or content.get("additional_special_tokens") or ()
    for value in more.values() if isinstance(more, Mapping) else more if isinstance(more, list) else ():
        if text := _text(value):
            yield text


def _added(directory: Path, decoder: object, specials: set[str]) -> dict[int, AddedToken]:
    """The added tokens by id, from ``added_tokens_decoder`` or else ``added_tokens.json``."""
    if isinstance(decoder, Mapping):
        try:
            return {int(token_id): _added_token(value) for token_id, value in decoder.items()}
        except (TypeError, ValueError) as error:
            path = directory / "tokenizer_config.json"
            raise TokenizerError(f"The added_tokens_decoder in {path} cannot be read: {error}.") from error
    ids = read_json(directory / "added_tokens.json")
    return {
        token_id: AddedToken(text, special=text in specials, normalized=text not in specials)
        for text, token_id in ids.items()
        if isinstance(token_id, int)
    }


def _added_token(value: Any) -> AddedToken:
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    flags = {name: bool(value[name]) for name in names if name in value}
    return AddedToken(value["content"], **flags)
