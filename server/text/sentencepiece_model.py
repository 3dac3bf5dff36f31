"""What a SentencePiece vocabulary consists of, whichever file it came in.

Knows neither files nor the library that will encode with it. Invariant: pieces, scores and types are equally long, and
a piece's place in them is its token id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import compress, count


class PieceType(IntEnum):
    """What a piece is for; the numbers are those of SentencePiece's model file, which GGUF took over."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Algorithm(Enum):
    """How a text is cut into pieces."""

    BPE = "BPE"
    UNIGRAM = "Unigram"


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """Pieces with their scores, and how a text is prepared for them.

    ``adds_space``: a text begins with a space of the tokenizer's own. ``trims_spaces``: spaces around a text go, and
    runs of them become one. ``normalization`` is SentencePiece's compiled table of replacements, empty for none.
    ``bos_id`` and ``eos_id`` are negative where there is no such piece.
    """

    algorithm: Algorithm
    pieces: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]
    unknown_id: int
    byte_fallback: bool = True
    adds_space: bool = True
    trims_spaces: bool = False
    normalization: bytes = b""
    bos_id: int = 1
    eos_id: int = 2

    def ids_of(self, *wanted: PieceType) -> list[int]:
        """The ids of all pieces of these types."""
        return ids_of(self.types, *wanted)


def ids_of(types: Sequence[int], *wanted: PieceType) -> list[int]:
    """The ids of all tokens of these types."""
    # No loop of Python's, and plain ints: of a quarter of a million tokens both show in the start-up time.
    are_wanted = frozenset(map(int, wanted)).__contains__
    return list(compress(count(), map(are_wanted, types)))


def first_ids(tokens: Sequence[str]) -> dict[str, int]:
    """Token -> id; the first one where padding repeats a token."""
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) != len(tokens):
        ids = dict(zip(reversed(tokens), range(len(tokens) - 1, -1, -1), strict=True))
    return ids
