"""Loads the vocabulary of a model directory in Hugging Face layout.

``tokenizer.json`` is the vocabulary; ``tokenizer_config.json`` names the special tokens and may say whether prompts
begin with BOS. Never reaches the network, and knows nothing of weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from server.text.errors import TokenizerError
from server.text.token_spelling import TokenSpelling
from server.text.vocabulary import Vocabulary


def load_directory(directory: Path) -> Vocabulary:
    """The vocabulary in ``directory``; raises TokenizerError if a file is missing, broken or of an unknown kind."""
    backend = _backend(directory)
    config = read_tokenizer_config(directory)
    special_tokens = {
        name: text
        for name, value in config.items()
        if name.endswith("_token") and (text := _token_text(value)) is not None
    }
    bos = _token_id(backend, special_tokens, "bos_token")
    eos = _token_id(backend, special_tokens, "eos_token")
    prefix, suffix = _surrounding_ids(backend)
    added = backend.get_added_tokens_decoder()
    special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
    spelling = _spelling(backend)
    return Vocabulary(
        backend=backend,
        spelling=spelling,
        token_text=lambda token_id: backend.id_to_token(token_id) if token_id >= 0 else None,
        size=max([backend.get_vocab_size(with_added_tokens=True), *(token_id + 1 for token_id in added)]),
        special_ids=special_ids,
        verbatim_ids=frozenset(added) if spelling is TokenSpelling.BYTE_LEVEL else special_ids,
        prefix_ids=_switched(prefix, bos, config.get("add_bos_token"), at_start=True),
        suffix_ids=_switched(suffix, eos, config.get("add_eos_token"), at_start=False),
        bos_token_id=bos,
        eos_token_ids=() if eos is None else (eos,),
        special_tokens=special_tokens,
    )


def read_tokenizer_config(directory: Path) -> Mapping[str, Any]:
    """``tokenizer_config.json`` of ``directory``; empty if there is none. Raises TokenizerError if it is broken."""
    path = directory / "tokenizer_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}.") from error
    if not isinstance(config, dict):
        raise TokenizerError(f"{path} must hold a JSON object.")
    return config


def _backend(directory: Path) -> tokenizers.Tokenizer:
    path = directory / "tokenizer.json"
    if not path.is_file():
        if (directory / "tokenizer.model").is_file():
            raise TokenizerError(
                f"{directory} has a tokenizer.model but no tokenizer.json; save the tokenizer once with transformers'"
                " AutoTokenizer to get one."
            )
        raise TokenizerError(f"{directory} has no tokenizer.json.")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{path} cannot be read: {error}.") from error
    # Training leftovers: a prompt must reach the model whole and unpadded.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _token_text(value: object) -> str | None:
    """A special token's text, given as a string or as an object with its ``content``."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _token_id(backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str], name: str) -> int | None:
    text = special_tokens.get(name)
    if text is None:
        return None
    token_id = backend.token_to_id(text)
    if token_id is None:
        raise TokenizerError(f"tokenizer_config.json names {text!r} as {name}, but the vocabulary has no such token.")
    return token_id


def _surrounding_ids(backend: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the post-processor puts before and after a text."""
    bare: list[int] = backend.encode("a", add_special_tokens=False).ids
    full: list[int] = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    return (), ()


def _switched(ids: tuple[int, ...], token_id: int | None, wanted: object, *, at_start: bool) -> tuple[int, ...]:
    """``ids`` with ``token_id`` present or absent as ``wanted`` says; unchanged unless it is true or false."""
    if token_id is None or not isinstance(wanted, bool):
        return ids
    if not wanted:
        return tuple(other for other in ids if other != token_id)
    if token_id in ids:
        return ids
    return (token_id, *ids) if at_start else (*ids, token_id)


def _spelling(backend: tokenizers.Tokenizer) -> TokenSpelling:
    """How the vocabulary spells bytes, told from its decoder."""
    description = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
    kinds = set(_decoder_kinds(description))
    if "ByteLevel" in kinds:
        return TokenSpelling.BYTE_LEVEL
    if kinds & {"Metaspace", "Replace"}:
        if "ByteFallback" in kinds:
            return TokenSpelling.SENTENCEPIECE
        return TokenSpelling.SENTENCEPIECE_WITHOUT_BYTES
    found = ", ".join(sorted(kinds)) or "none"
    raise TokenizerError(f"The decoder in tokenizer.json ({found}) is not supported; ByteLevel and Metaspace are.")


def _decoder_kinds(description: Mapping[str, Any]) -> Iterator[str]:
    if description.get("type") == "Sequence":
        for part in description["decoders"]:
            yield from _decoder_kinds(part)
    elif "type" in description:
        yield description["type"]
