"""Derives the ranked list of merges that the `tokenizers` library wants from what other libraries keep instead.

SentencePiece keeps a score for each piece and joins, again and again, the two neighbours whose union has the best
one, the leftmost on a tie; tiktoken keeps a rank for each piece and does the same. Here each piece contributes every
split of it into two known pieces, best piece first. The result differs in one corner: two *overlapping* candidates for
the *same* piece, as in a run of one repeated character, are ranked by their split and not by their position.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar, overload

from server.text.merge_cache import MergeCache
from server.text.sentencepiece_model import PieceType, SentencePieceModel

_RULES_VERSION: Final = "1"

Text = TypeVar("Text", str, bytes)


def merges_by_score(model: SentencePieceModel, ids: Mapping[str, int], cache: MergeCache) -> array[int]:
    """The merges of a SentencePiece BPE model as flat id pairs (left, right, left, right, ...), best first.

    ``ids`` is the vocabulary. Only normal pieces take part. Derived once for all that share ``cache``.
    """
    key = _key(model)
    pairs = cache.load(key)
    if pairs is None:
        normal = model.ids_of(PieceType.NORMAL)
        best_first = sorted(normal, key=model.scores.__getitem__, reverse=True)
        known = {piece: ids[piece] for piece in map(model.pieces.__getitem__, normal)}
        pairs = splits_in_two(map(model.pieces.__getitem__, best_first), known)
        cache.store(key, pairs)
    return pairs


def splits_in_two(pieces: Iterable[Text], ids: Mapping[Text, int]) -> array[int]:
    """Every split of every one of ``pieces`` into two of ``ids``, in their order, as flat id pairs."""
    pairs = array("i")
    append = pairs.append
    for piece in pieces:
        # Their order among themselves decides only the corner described above; merging from the left leaves the
        # longer part on the left.
        for border in range(len(piece) - 1, 0, -1):
            left = piece[:border]
            if left in ids:
                right = piece[border:]
                if right in ids:
                    append(ids[left])
                    append(ids[right])
    return pairs


class NamedPairs(Sequence[tuple[str, str]]):
    """Flat id ``pairs`` as pairs of ``tokens``, made one by one: half a million of them are much memory."""

    def __init__(self, pairs: Sequence[int], tokens: Sequence[str]) -> None:
        self._pairs = pairs
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._pairs) // 2

    @overload
    def __getitem__(self, place: int) -> tuple[str, str]: ...

    @overload
    def __getitem__(self, place: slice) -> list[tuple[str, str]]: ...

    def __getitem__(self, place: int | slice) -> tuple[str, str] | list[tuple[str, str]]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        return self._tokens[self._pairs[2 * place]], self._tokens[self._pairs[2 * place + 1]]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        texts = map(self._tokens.__getitem__, self._pairs)
        return zip(texts, texts, strict=True)


def _key(model: SentencePieceModel) -> str:
    """Names the merge list of a vocabulary: equal keys, equal merges."""
    digest = hashlib.sha256(f"{_RULES_VERSION} {sys.byteorder} {array('i').itemsize}".encode())
    pieces = model.pieces
    for part in (array("I", map(len, pieces)), array("i", model.types), array("d", model.scores)):
        digest.update(part)
    digest.update("".join(pieces).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
