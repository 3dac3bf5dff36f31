"""Compiles the vocabulary in a GGUF file's metadata into a tokenizer.

Reads the keys ``tokenizer.ggml.*`` (GGUF specification, "Tokenizer") from a plain mapping; opens no model file. Three
kinds are known: "llama", SentencePiece BPE with a score for each piece; "t5", SentencePiece Unigram; and "gpt2",
byte-level BPE with a merge list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken

from server.text.byte_level_backend import compile_byte_level
from server.text.errors import TokenizerError
from server.text.merge_cache import MergeCache, default_cache_directory
from server.text.sentencepiece_backend import UserDefined, compile_sentencepiece
from server.text.sentencepiece_model import Algorithm, PieceType, SentencePieceModel, first_ids, ids_of
from server.text.split_rules import GGUF_RULES, SplitRule
from server.text.token_spelling import METASPACE, TokenSpelling
from server.text.vocabulary import Vocabulary

_PREFIX: Final = "tokenizer.ggml."
_SENTENCEPIECE_KINDS: Final = {"llama": Algorithm.BPE, "t5": Algorithm.UNIGRAM}


class _Metadata:
    """Typed access to ``tokenizer.ggml.*``."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata

    def get(self, name: str, default: Any = None) -> Any:
        return self._metadata.get(_PREFIX + name, default)

    def require(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise TokenizerError(f"The GGUF metadata has no {_PREFIX}{name}, so its vocabulary cannot be read.")
        return value


def load_gguf(metadata: Mapping[str, object], cache_directory: Path | None = None) -> Vocabulary:
    """Compile the vocabulary described by GGUF ``metadata``.

    ``cache_directory`` keeps what is slow to derive (default: `default_cache_directory`). Raises TokenizerError for a
    missing key, an unknown kind of tokenizer or an unknown pre-tokenizer.
    """
    keys = _Metadata(metadata)
    kind = keys.require("model")
    tokens: Sequence[str] = keys.require("tokens")
    types: Sequence[int] = keys.get("token_type") or [PieceType.NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise TokenizerError(f"The GGUF metadata has {len(tokens)} tokens but {len(types)} token types.")
    if kind in _SENTENCEPIECE_KINDS:
        cache = MergeCache(cache_directory or default_cache_directory())
        return _sentencepiece(keys, _SENTENCEPIECE_KINDS[kind], tokens, types, cache)
    if kind == "gpt2":
        return _byte_level(keys, tokens, types)
    known = ", ".join(f'"{name}"' for name in (*_SENTENCEPIECE_KINDS, "gpt2"))
    raise TokenizerError(f'The GGUF tokenizer model "{kind}" is not supported; these are: {known}.')


def _sentencepiece(
    keys: _Metadata, algorithm: Algorithm, tokens: Sequence[str], types: Sequence[int], cache: MergeCache
) -> Vocabulary:
    scores: Sequence[float] = keys.require("scores")
    if len(scores) != len(tokens):
        raise TokenizerError(f"The GGUF metadata has {len(tokens)} tokens but {len(scores)} scores.")
    is_unigram = algorithm is Algorithm.UNIGRAM
    has_bytes = not is_unigram or bool(ids_of(types, PieceType.BYTE))
    model = SentencePieceModel(
        algorithm=algorithm,
        pieces=tokens,
        scores=scores,
        types=types,
        unknown_id=keys.get("unknown_token_id", 2 if is_unigram else 0),
        byte_fallback=has_bytes,
        adds_space=keys.get("add_space_prefix", True),
        trims_spaces=is_unigram and keys.get("remove_extra_whitespaces", False),
        normalization=bytes(keys.get("precompiled_charsmap", ())) if is_unigram else b"",
    )
    backend = compile_sentencepiece(model, cache, user_defined=_place_of_user_defined(model))
    special_ids = model.ids_of(PieceType.CONTROL, PieceType.UNKNOWN)
    return _vocabulary(
        keys,
        backend,
        TokenSpelling.SENTENCEPIECE if has_bytes else TokenSpelling.SENTENCEPIECE_WITHOUT_BYTES,
        tokens,
        special_ids=special_ids,
        verbatim_ids=special_ids,
        # Files may leave out what was the convention of the first of their kind.
        conventions={"eos": 1, "unknown": 2, "padding": 0} if is_unigram else {"bos": 1, "eos": 2, "unknown": 0},
        adds_bos=not is_unigram,
        adds_eos=is_unigram,
    )


def _place_of_user_defined(model: SentencePieceModel) -> UserDefined:
    """Pieces with a space written U+2581 are SentencePiece's own; others were added, as chat marks are."""
    if any(METASPACE in model.pieces[token_id] for token_id in model.ids_of(PieceType.USER_DEFINED)):
        return UserDefined.INSIDE_STRETCHES
    return UserDefined.BETWEEN_STRETCHES


def _byte_level(keys: _Metadata, tokens: Sequence[str], types: Sequence[int]) -> Vocabulary:
    rule = _split_rule(keys)
    ids = first_ids(tokens)
    merges: list[tuple[str, str]] = []
    for merge in keys.require("merges"):
        left, separator, right = merge.partition(" ")
        if not separator or not {left, right, left + right} <= ids.keys():
            raise TokenizerError(f"The GGUF merge {merge!r} does not join two tokens into a third.")
        merges.append((left, right))
    backend = compile_byte_level(ids, merges, rule)
    special_ids = ids_of(types, PieceType.CONTROL, PieceType.UNKNOWN)
    whole_ids = ids_of(types, PieceType.USER_DEFINED)
    backend.add_special_tokens(
        [AddedToken(tokens[i], normalized=False, special=True) for i in special_ids if tokens[i]]
    )
    backend.add_tokens([AddedToken(tokens[i], normalized=False, special=False) for i in whole_ids if tokens[i]])
    return _vocabulary(
        keys,
        backend,
        TokenSpelling.BYTE_LEVEL,
        tokens,
        special_ids=special_ids,
        verbatim_ids=[*special_ids, *whole_ids],
        conventions={},
        adds_bos=rule.adds_bos,
        adds_eos=False,
    )


def _split_rule(keys: _Metadata) -> SplitRule:
    name = keys.get("pre", "default")
    if name not in GGUF_RULES:
        known = ", ".join(GGUF_RULES)
        raise TokenizerError(f'The GGUF pre-tokenizer "{name}" is not supported; these are: {known}.')
    return GGUF_RULES[name]


def _vocabulary(
    keys: _Metadata,
    backend: tokenizers.Tokenizer,
    spelling: TokenSpelling,
    tokens: Sequence[str],
    *,
    special_ids: Sequence[int],
    verbatim_ids: Sequence[int],
    conventions: Mapping[str, int],
    adds_bos: bool,
    adds_eos: bool,
) -> Vocabulary:
    """Add the facts about single tokens to a compiled ``backend``; the arguments say what holds unless a key does."""
    ids: dict[str, int] = {}
    for name in ("bos", "eos", "unknown", "padding", "eot", "eom"):
        token_id = keys.get(f"{name}_token_id", conventions.get(name))
        if isinstance(token_id, int) and 0 <= token_id < len(tokens):
            ids[name] = token_id
    bos, eos = ids.get("bos"), ids.get("eos")
    variables = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    return Vocabulary(
        backend=backend,
        spelling=spelling,
        token_text=lambda token_id: tokens[token_id] if 0 <= token_id < len(tokens) else None,
        size=len(tokens),
        special_ids=frozenset(special_ids),
        verbatim_ids=frozenset(verbatim_ids),
        prefix_ids=(bos,) if bos is not None and keys.get("add_bos_token", adds_bos) else (),
        suffix_ids=(eos,) if eos is not None and keys.get("add_eos_token", adds_eos) else (),
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys(ids[name] for name in ("eos", "eot", "eom") if name in ids)),
        special_tokens={variables[name]: tokens[token_id] for name, token_id in ids.items() if name in variables},
    )
