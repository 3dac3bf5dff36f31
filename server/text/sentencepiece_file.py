"""Reads ``tokenizer.model``, SentencePiece's own file.

It is one protocol buffer, ``ModelProto`` of sentencepiece_model.proto; the numbers of its fields are below. Only what
decides how a text is encoded is read. Knows the wire format and this message, and no tokenizer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from server.text.errors import TokenizerError
from server.text.sentencepiece_model import Algorithm, PieceType, SentencePieceModel

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_ALGORITHM, _SPACE_AS_SUFFIX, _BYTE_FALLBACK, _UNKNOWN_ID, _BOS_ID, _EOS_ID = 3, 24, 35, 40, 41, 42
_CHARSMAP, _ADDS_SPACE, _TRIMS_SPACES, _ESCAPES_SPACES = 2, 3, 4, 5

_ALGORITHMS: Final = {1: Algorithm.UNIGRAM, 2: Algorithm.BPE}
_OTHER_ALGORITHMS: Final = {3: "word", 4: "char"}


def read_sentencepiece_file(path: Path) -> SentencePieceModel:
    """The vocabulary in ``path``; raises TokenizerError if it cannot be read or is of a kind that is not served."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        return _model(content, path)
    except (ValueError, IndexError, struct.error) as error:
        if isinstance(error, TokenizerError):
            raise
        raise TokenizerError(
            f"{path} is no SentencePiece model (a protocol buffer); no other kind of tokenizer.model is read."
        ) from error


def _model(content: bytes, path: Path) -> SentencePieceModel:
    pieces: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer = normalizer = _Fields(b"")
    for number, value in _fields(content):
        if number == _PIECES and isinstance(value, bytes):
            piece = _Fields(value)
            pieces.append(piece.data(_PIECE_TEXT).decode())
            scores.append(piece.number(_PIECE_SCORE))
            types.append(piece.whole_number(_PIECE_TYPE, PieceType.NORMAL))
        elif number == _TRAINER and isinstance(value, bytes):
            trainer = _Fields(value)
        elif number == _NORMALIZER and isinstance(value, bytes):
            normalizer = _Fields(value)
    if not pieces:
        raise ValueError("no pieces")
    kind = trainer.whole_number(_ALGORITHM, 1)
    if kind not in _ALGORITHMS:
        name = _OTHER_ALGORITHMS.get(kind, kind)
        raise TokenizerError(f'{path} is a SentencePiece model of the kind "{name}"; BPE and Unigram are served.')
    if trainer.whole_number(_SPACE_AS_SUFFIX, 0) or not normalizer.whole_number(_ESCAPES_SPACES, 1):
        raise TokenizerError(f"{path} writes spaces behind words or as they are, which is not served.")
    unknown = [index for index, type_ in enumerate(types) if type_ == PieceType.UNKNOWN]
    return SentencePieceModel(
        algorithm=_ALGORITHMS[kind],
        pieces=pieces,
        scores=scores,
        types=types,
        unknown_id=unknown[0] if unknown else trainer.whole_number(_UNKNOWN_ID, 0),
        byte_fallback=bool(trainer.whole_number(_BYTE_FALLBACK, 0)),
        adds_space=bool(normalizer.whole_number(_ADDS_SPACE, 1)),
        trims_spaces=bool(normalizer.whole_number(_TRIMS_SPACES, 1)),
        normalization=normalizer.data(_CHARSMAP),
        bos_id=_signed(trainer.whole_number(_BOS_ID, 1)),
        eos_id=_signed(trainer.whole_number(_EOS_ID, 2)),
    )


def _signed(number: int) -> int:
    """A negative number is written as its complement of 2**64."""
    return number - (1 << 64) if number >= 1 << 63 else number


class _Fields:
    """The fields of one small message, the last of each number."""

    def __init__(self, content: bytes) -> None:
        self._values = dict(_fields(content))

    def data(self, number: int) -> bytes:
        value = self._values.get(number, b"")
        if not isinstance(value, bytes):
            raise ValueError(f"field {number} is no text")
        return value

    def whole_number(self, number: int, default: int) -> int:
        value = self._values.get(number, default)
        if not isinstance(value, int):
            raise ValueError(f"field {number} is no whole number")
        return value

    def number(self, number: int) -> float:
        value = self._values.get(number, 0.0)
        if not isinstance(value, float):
            raise ValueError(f"field {number} is no number")
        return value


def _fields(content: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """The numbers and values of a message's fields: varints as int, 32-bit fields as float, the rest as bytes."""
    position, end = 0, len(content)
    while position < end:
        tag, position = _varint(content, position)
        wire_type = tag & 7
        value: int | float | bytes
        if wire_type == _VARINT:
            value, position = _varint(content, position)
        elif wire_type == _FIXED32:
            (value,) = struct.unpack_from("<f", content, position)
            position += 4
        elif wire_type in (_BYTES, _FIXED64):
            size = 8
            if wire_type == _BYTES:
                size, position = _varint(content, position)
            if position + size > end:
                raise ValueError("a field is cut off")
            value = content[position : position + size]
            position += size
        else:
            raise ValueError(f"wire type {wire_type}")
        yield tag >> 3, value


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """A number in groups of 7 bits, lowest first, and the position behind it."""
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")
