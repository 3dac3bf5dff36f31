from __future__ import annotations

from pathlib import Path

import pytest

from server.text.errors import TokenizerError
from server.text.sentencepiece_file import read_sentencepiece_file
from server.text.sentencepiece_model import Algorithm
from server.text.tokenizer import Tokenizer
from tests.server.text.hf_directories import Directories


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("tokenizer.model of Gemma", Algorithm.BPE), ("tokenizer.model, Unigram", Algorithm.UNIGRAM)],
)
def test_file_has_the_pieces_and_settings_that_sentencepiece_reads_from_it(
    hf_directories: Directories, name: str, algorithm: Algorithm
) -> None:
    trained = hf_directories.trained[name]
    model = read_sentencepiece_file(trained.path)
    assert list(zip(model.pieces, model.scores, model.types, strict=True)) == [tuple(piece) for piece in trained.pieces]
    assert model.algorithm is algorithm
    assert model.adds_space is trained.adds_space
    assert model.trims_spaces is trained.trims_spaces
    assert list(model.normalization) == list(trained.normalization)
    assert model.byte_fallback is (algorithm is Algorithm.BPE)
    assert (model.unknown_id, model.bos_id, model.eos_id) == (0, 1, 2)


def field(number: int, wire_type: int, content: bytes) -> bytes:
    tag = number << 3 | wire_type
    head = bytes([tag]) if tag < 0x80 else bytes([tag & 0x7F | 0x80, tag >> 7])
    return head + (bytes([len(content)]) if wire_type == 2 else b"") + content


PIECE = field(1, 2, field(1, 2, b"<unk>") + field(3, 0, b"\x02"))


def test_defaults_hold_for_what_a_file_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(PIECE + field(1, 2, field(1, 2, "▁é".encode()) + field(2, 5, b"\x00\x00\x80\xbf")))
    model = read_sentencepiece_file(path)
    assert list(zip(model.pieces, model.scores, model.types, strict=True)) == [("<unk>", 0.0, 2), ("▁é", -1.0, 1)]
    assert (model.algorithm, model.byte_fallback, model.adds_space) == (Algorithm.UNIGRAM, False, True)


def test_piece_that_is_absent_has_a_negative_id(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(PIECE + field(2, 2, field(41, 0, b"\xff" * 9 + b"\x01")))
    assert read_sentencepiece_file(path).bos_id == -1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no SentencePiece model"),
        (b"IQ== 0\nIg== 1\n", "is no SentencePiece model"),
        (PIECE[:-1], "is no SentencePiece model"),
        (PIECE + b"\xff" * 20, "is no SentencePiece model"),
        (PIECE + b"\x0b", "is no SentencePiece model"),
        (field(1, 2, field(1, 0, b"\x01")), "is no SentencePiece model"),
        (PIECE + field(2, 2, field(3, 0, b"\x04")), 'of the kind "char"; BPE and Unigram are served'),
        (PIECE + field(2, 2, field(24, 0, b"\x01")), "writes spaces behind words"),
        (PIECE + field(3, 2, field(5, 0, b"\x00")), "writes spaces behind words or as they are"),
    ],
)
def test_file_that_cannot_be_served_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.from_directory(tmp_path)
    assert str(path) in str(caught.value)
