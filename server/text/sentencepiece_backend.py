"""Compiles a SentencePiece vocabulary into a tokenizer of the `tokenizers` library.

The whole text is one word, a space is written U+2581, and characters without a piece become byte pieces where there
are any. User-defined pieces are never merged with their neighbours, and pieces marked unused are never merged from
parts. Knows no files.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from server.text.merge_cache import MergeCache
from server.text.ranked_merges import NamedPairs, merges_by_score
from server.text.sentencepiece_model import Algorithm, PieceType, SentencePieceModel, first_ids
from server.text.token_spelling import METASPACE

_SPACES_AROUND: Final = tokenizers.Regex(r"\A +| +\z")
_SPACE_RUNS: Final = tokenizers.Regex(" {2,}")


class SpaceBefore(enum.Enum):
    """Where the space goes that a vocabulary adds. A stretch is what lies between two added tokens."""

    EVERY_STRETCH = enum.auto()
    """As SentencePiece does with each text."""
    EVERY_STRETCH_WITHOUT_ONE = enum.auto()
    FIRST_STRETCH_WITHOUT_ONE = enum.auto()


_PREPEND_SCHEMES: Final[Mapping[SpaceBefore, Literal["always", "first"]]] = {
    SpaceBefore.EVERY_STRETCH_WITHOUT_ONE: "always",
    SpaceBefore.FIRST_STRETCH_WITHOUT_ONE: "first",
}


class UserDefined(enum.Enum):
    """How a text is parted around user-defined pieces."""

    BETWEEN_STRETCHES = enum.auto()
    """They end one stretch and begin another, as control tokens do."""
    INSIDE_STRETCHES = enum.auto()
    """They are found in a text that has been prepared as one, as SentencePiece itself does."""


def compile_sentencepiece(
    model: SentencePieceModel,
    cache: MergeCache,
    *,
    space_before: SpaceBefore = SpaceBefore.EVERY_STRETCH,
    user_defined: UserDefined = UserDefined.INSIDE_STRETCHES,
) -> tokenizers.Tokenizer:
    """The tokenizer of ``model``, its control, unknown and user-defined pieces added; ``cache`` keeps its merges."""
    is_parted = user_defined is UserDefined.INSIDE_STRETCHES and model.adds_space
    user_defined_ids = model.ids_of(PieceType.USER_DEFINED)
    # A space inside a user-defined piece is written either way. Where a space goes before every stretch, they have to
    # be found before it does, and text has only the plain one.
    written, wanted = (" ", METASPACE) if is_parted or not model.adds_space else (METASPACE, " ")
    pieces = list(model.pieces)
    for token_id in user_defined_ids:
        pieces[token_id] = pieces[token_id].replace(written, wanted)
    wholes = [pieces[token_id] for token_id in user_defined_ids if pieces[token_id]]
    backend = tokenizers.Tokenizer(_core(model, pieces, cache, takes_wholes=is_parted and bool(wholes)))
    backend.normalizer = _normalizer(model, space_before)
    cutters: list[pre_tokenizers.PreTokenizer] = []
    if model.adds_space and space_before in _PREPEND_SCHEMES:
        cutters.append(pre_tokenizers.Metaspace(METASPACE, prepend_scheme=_PREPEND_SCHEMES[space_before], split=False))
    if is_parted and wholes:
        cutters.append(pre_tokenizers.Split(tokenizers.Regex(_any_of(wholes)), "isolated"))
    if cutters:
        backend.pre_tokenizer = pre_tokenizers.Sequence(cutters)
    special = [pieces[token_id] for token_id in model.ids_of(PieceType.CONTROL, PieceType.UNKNOWN)]
    backend.add_special_tokens([AddedToken(piece, normalized=False, special=True) for piece in special if piece])
    if not is_parted:
        is_normalized = not model.adds_space
        backend.add_tokens([AddedToken(piece, normalized=is_normalized, special=False) for piece in wholes])
    return backend


def _core(model: SentencePieceModel, pieces: Sequence[str], cache: MergeCache, *, takes_wholes: bool) -> models.Model:
    if model.algorithm is Algorithm.UNIGRAM:
        scored = list(zip(pieces, model.scores, strict=True))
        return models.Unigram(scored, unk_id=model.unknown_id, byte_fallback=model.byte_fallback)
    ids = first_ids(pieces)
    return models.BPE(
        vocab=ids,
        merges=NamedPairs(merges_by_score(model, ids, cache), pieces),
        unk_token=pieces[model.unknown_id] if 0 <= model.unknown_id < len(pieces) else None,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
        ignore_merges=takes_wholes,
    )


def _normalizer(model: SentencePieceModel, space_before: SpaceBefore) -> normalizers.Normalizer:
    """The text's preparation, in SentencePiece's order."""
    steps: list[normalizers.Normalizer] = []
    if model.normalization:
        steps.append(normalizers.Precompiled(model.normalization))
    if model.trims_spaces:
        steps += [normalizers.Replace(_SPACES_AROUND, ""), normalizers.Replace(_SPACE_RUNS, " ")]
    if model.adds_space and space_before is SpaceBefore.EVERY_STRETCH:
        steps.append(normalizers.Prepend(METASPACE))
    steps.append(normalizers.Replace(" ", METASPACE))
    return steps[0] if len(steps) == 1 else normalizers.Sequence(steps)


def _any_of(pieces: Sequence[str]) -> str:
    """An expression for the longest of ``pieces``."""
    return "|".join(re.escape(piece) for piece in sorted(pieces, key=len, reverse=True))
