from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from server.text.errors import TokenizerError
from server.text.gguf_vocabulary import load_gguf
from server.text.merge_cache import MergeCache
from server.text.tokenizer import Tokenizer

NORMAL, USER_DEFINED = 1, 4
SPACE = "\u2581"

ALPHABETS = [
    "abcdefghij klmnop qrstuvwxyz",
    "the and ing er ion of to in that is was for on",
    "0123456789 .,-+",
    " \n\t\r",
    "漢字日本語中文テスト한국어",
    "👋🏽👩‍👩‍👧‍👦🤽‍♀️🇩🇪 ❤️",
    "\x00\x01\x1b\x7f\x85\u200b\ufeff",
    "éďñüß ΑΩ Жя العربية עברית ไทย हिन्दी",
    "<>/{}[]()=;:'\"`~!@#$%^&*_|\\",
]
WORDS = ["Hello", " world", "<div>", "</", ">", "\n\n", "    ", "\t\t", "[multimodal]", "antidisestablishment", "1234"]


def random_text(generator: random.Random) -> str:
    parts = []
    for _ in range(generator.randint(1, 8)):
        if generator.random() < 0.3:
            parts.append(generator.choice(WORDS))
        else:
            alphabet = generator.choice(ALPHABETS)
            parts.append("".join(generator.choice(alphabet) for _ in range(generator.randint(1, 12))))
    return "".join(parts)


class SentencePieceByTheBook:
    """Best-score bigram merging over a list, as slow as it is plain."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        tokens: Sequence[str] = metadata["tokenizer.ggml.tokens"]
        types: Sequence[int] = metadata["tokenizer.ggml.token_type"]
        scores: Sequence[float] = metadata["tokenizer.ggml.scores"]
        self.ids = {token: index for index, token in enumerate(tokens)}
        self.scores = {tokens[i]: scores[i] for i in range(len(tokens)) if types[i] == NORMAL}
        self.whole = {tokens[i].replace(" ", SPACE): i for i in range(len(tokens)) if types[i] == USER_DEFINED}
        self.longest = max(map(len, self.whole))

    def encode(self, text: str) -> list[int]:
        text = text.replace(" ", SPACE)
        ids: list[int] = []
        pending = ""
        position = 0
        while position < len(text):
            for length in range(self.longest, 0, -1):
                candidate = text[position : position + length]
                if candidate in self.whole and len(candidate) == length:
                    ids += self.merge(pending)
                    ids.append(self.whole[candidate])
                    pending = ""
                    position += length
                    break
            else:
                pending += text[position]
                position += 1
        return ids + self.merge(pending)

    def merge(self, text: str) -> list[int]:
        symbols = list(text)
        while True:
            candidates = [
                (-self.scores[left + right], index)
                for index, (left, right) in enumerate(pairwise(symbols))
                if left + right in self.scores
            ]
            if not candidates:
                break
            _, index = min(candidates)
            symbols[index : index + 2] = ["".join(symbols[index : index + 2])]
        ids = []
        for symbol in symbols:
            if symbol in self.scores:
                ids.append(self.ids[symbol])
            else:
                ids += [self.ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
        return ids


def test_demo_model_tokenizes_random_text_as_sentencepiece_does_and_back(
    default_metadata: Mapping[str, object], default_tokenizer: Tokenizer
) -> None:
    oracle = SentencePieceByTheBook(default_metadata)
    generator = random.Random(20240229)
    for _ in range(600):
        text = random_text(generator)
        ids = default_tokenizer.encode(text, add_special_tokens=False)
        assert ids == oracle.encode(text), repr(text)
        assert default_tokenizer.decode(ids) == text


def test_demo_model_begins_with_bos_and_names_its_special_tokens(default_tokenizer: Tokenizer) -> None:
    assert default_tokenizer.vocab_size == 262_144
    assert default_tokenizer.bos_token_id == 2
    assert default_tokenizer.eos_token_ids == (1,)
    assert default_tokenizer.encode("Hello") == [2, 9259]
    assert default_tokenizer.encode("<start_of_turn>user")[1] == 105
    assert default_tokenizer.is_special(105)
    assert not default_tokenizer.is_special(138)


def test_user_defined_space_runs_are_taken_longest_first(default_tokenizer: Tokenizer) -> None:
    ids = default_tokenizer.encode("a" + " " * 40 + "b", add_special_tokens=False)
    assert [len(default_tokenizer.token_bytes(i)) for i in ids] == [1, 31, 9, 1]


def tokens_of(metadata: Mapping[str, Any], text: str, cache: Path) -> list[bytes]:
    tokenizer = Tokenizer.from_gguf(metadata, cache_directory=cache)
    return [tokenizer.token_bytes(i) for i in tokenizer.encode(text, add_special_tokens=False)]


def test_sentencepiece_merges_by_score_and_puts_a_space_before_the_text(
    sentencepiece_metadata: dict[str, object], tmp_path: Path
) -> None:
    assert tokens_of(sentencepiece_metadata, "hello wor", tmp_path) == [b" hello", b" w", b"or"]
    sentencepiece_metadata["tokenizer.ggml.add_space_prefix"] = False
    assert tokens_of(sentencepiece_metadata, "hello wor", tmp_path) == [b"hello", b" w", b"or"]


def test_d03_sentencepiece_falls_back_to_bytes_and_round_trips(
    sentencepiece_metadata: dict[str, object], tmp_path: Path
) -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata, cache_directory=tmp_path)
    ids = tokenizer.encode("hello 👋")
    assert [tokenizer.token_bytes(i) for i in ids] == [b"<s>", b" hello", b" ", b"\xf0", b"\x9f", b"\x91", b"\x8b"]
    assert tokenizer.decode(ids) == "hello 👋"


def test_sentencepiece_conventions_fill_in_for_missing_keys(
    sentencepiece_metadata: dict[str, object], tmp_path: Path
) -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata, cache_directory=tmp_path)
    assert tokenizer.encode("") == [1]
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def test_user_defined_piece_is_cut_out_of_the_text_and_is_no_special_token(
    sentencepiece_metadata: dict[str, object], tmp_path: Path
) -> None:
    sentencepiece_metadata["tokenizer.ggml.add_space_prefix"] = False
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata, cache_directory=tmp_path)
    ids = tokenizer.encode("he<|user|>he", add_special_tokens=False)
    assert [tokenizer.token_bytes(i) for i in ids] == [b"he", b"<|user|>", b"he"]
    assert tokenizer.decode(ids) == "he<|user|>he"


@pytest.mark.parametrize("adds_space", [True, False])
@pytest.mark.parametrize("written", [" ", SPACE])
def test_user_defined_piece_with_spaces_is_found_however_the_file_writes_them(
    sentencepiece_metadata: dict[str, Any], tmp_path: Path, written: str, adds_space: bool
) -> None:
    sentencepiece_metadata["tokenizer.ggml.tokens"].append(written * 3)
    sentencepiece_metadata["tokenizer.ggml.scores"].append(0.0)
    sentencepiece_metadata["tokenizer.ggml.token_type"].append(USER_DEFINED)
    sentencepiece_metadata["tokenizer.ggml.add_space_prefix"] = adds_space
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata, cache_directory=tmp_path)
    ids = tokenizer.encode("hello   ", add_special_tokens=False)
    assert [tokenizer.token_bytes(i) for i in ids] == [b" hello" if adds_space else b"hello", b"   "]
    assert ids[-1] == tokenizer.vocab_size - 1


def test_text_that_looks_like_a_byte_piece_stays_text(
    sentencepiece_metadata: dict[str, object], tmp_path: Path
) -> None:
    sentencepiece_metadata["tokenizer.ggml.add_space_prefix"] = False
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata, cache_directory=tmp_path)
    ids = tokenizer.encode("<0x41>", add_special_tokens=False)
    assert len(ids) == 6
    assert tokenizer.decode(ids) == "<0x41>"


def test_second_load_reads_the_merges_from_the_cache(
    sentencepiece_metadata: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Tokenizer.from_gguf(sentencepiece_metadata, cache_directory=tmp_path).encode("hello wor hello")
    monkeypatch.setattr("server.text.ranked_merges.splits_in_two", None)
    second = Tokenizer.from_gguf(sentencepiece_metadata, cache_directory=tmp_path).encode("hello wor hello")
    assert second == first


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 32 + b"\1\0\0\0" * 6])
def test_damaged_cache_is_ignored_and_rebuilt(
    sentencepiece_metadata: dict[str, object], tmp_path: Path, damage: bytes
) -> None:
    expected = Tokenizer.from_gguf(sentencepiece_metadata, cache_directory=tmp_path).encode("hello wor")
    (path,) = tmp_path.iterdir()
    intact = path.read_bytes()
    path.write_bytes(damage)
    assert Tokenizer.from_gguf(sentencepiece_metadata, cache_directory=tmp_path).encode("hello wor") == expected
    assert path.read_bytes() == intact
    assert list(tmp_path.iterdir()) == [path]


def test_other_scores_are_another_cache_entry(sentencepiece_metadata: dict[str, Any], tmp_path: Path) -> None:
    load_gguf(sentencepiece_metadata, tmp_path)
    sentencepiece_metadata["tokenizer.ggml.scores"][-1] = -99.0
    load_gguf(sentencepiece_metadata, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_cache_that_cannot_be_written_does_no_harm(sentencepiece_metadata: dict[str, object], tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    assert tokens_of(sentencepiece_metadata, "hello", in_the_way) == [b" hello"]
    assert MergeCache(in_the_way).load("anything") is None


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "hello hello123 !!", [b"hello", b" hello", b"123", b" ", b"!!"]),
        ("gpt-2", "hello   hello", [b"hello", b"  ", b" hello"]),
        ("default", "!!123", [b"!!", b"123"]),
        ("llama-bpe", "hello123123!!", [b"hello", b"123", b"123", b"!!"]),
        ("qwen2", "hello123", [b"hello", b"1", b"2", b"3"]),
        ("smollm", "hello123", [b"hello", b"1", b"2", b"3"]),
    ],
)
def test_byte_level_text_is_split_as_the_pre_tokenizer_says(
    byte_level_metadata: dict[str, object], tmp_path: Path, pre: str, text: str, expected: list[bytes]
) -> None:
    byte_level_metadata["tokenizer.ggml.pre"] = pre
    assert tokens_of(byte_level_metadata, text, tmp_path) == expected


@pytest.mark.parametrize("pre", ["default", "gpt-2", "llama-bpe", "qwen2", "smollm"])
def test_byte_level_round_trips_any_text(byte_level_metadata: dict[str, object], tmp_path: Path, pre: str) -> None:
    byte_level_metadata["tokenizer.ggml.pre"] = pre
    tokenizer = Tokenizer.from_gguf(byte_level_metadata, cache_directory=tmp_path)
    generator = random.Random(7)
    for _ in range(200):
        text = random_text(generator)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_byte_level_added_tokens_keep_their_own_text(byte_level_metadata: dict[str, object], tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata, cache_directory=tmp_path)
    ids = tokenizer.encode("hello<naïf><|end|>")
    assert [tokenizer.token_bytes(i) for i in ids] == [b"hello", "<naïf>".encode(), b"<|end|>"]
    assert [tokenizer.is_special(i) for i in ids] == [False, False, True]
    assert tokenizer.eos_token_ids == (ids[-1],)


def test_llama3_files_begin_with_bos_unless_they_say_otherwise(
    byte_level_metadata: dict[str, object], tmp_path: Path
) -> None:
    byte_level_metadata["tokenizer.ggml.bos_token_id"] = byte_level_metadata["tokenizer.ggml.eos_token_id"]
    assert not Tokenizer.from_gguf(byte_level_metadata, cache_directory=tmp_path).adds_bos
    byte_level_metadata["tokenizer.ggml.pre"] = "llama-bpe"
    assert Tokenizer.from_gguf(byte_level_metadata, cache_directory=tmp_path).adds_bos
    byte_level_metadata["tokenizer.ggml.add_bos_token"] = False
    assert not Tokenizer.from_gguf(byte_level_metadata, cache_directory=tmp_path).adds_bos


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("pre", "whitespace", '"whitespace" is not supported'),
        ("model", "bert", '"bert" is not supported'),
        ("model", None, "has no tokenizer.ggml.model"),
        ("tokens", None, "has no tokenizer.ggml.tokens"),
        ("merges", None, "has no tokenizer.ggml.merges"),
        ("merges", ["h e", "nonsense"], "'nonsense' does not join"),
        ("merges", ["h z"], "'h z' does not join"),
        ("token_type", [1, 1], "but 2 token types"),
    ],
)
def test_vocabulary_that_cannot_be_read_is_refused_in_one_sentence(
    byte_level_metadata: dict[str, object], tmp_path: Path, key: str, value: object, message: str
) -> None:
    byte_level_metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(TokenizerError, match=message):
        load_gguf(byte_level_metadata, tmp_path)


def test_repeated_padding_tokens_keep_their_ids(byte_level_metadata: dict[str, Any], tmp_path: Path) -> None:
    byte_level_metadata["tokenizer.ggml.tokens"] += ["<pad>", "<pad>"]
    byte_level_metadata["tokenizer.ggml.token_type"] += [3, 3]
    tokenizer = Tokenizer.from_gguf(byte_level_metadata, cache_directory=tmp_path)
    last = tokenizer.vocab_size - 1
    assert tokenizer.encode("<pad>") == [last - 1]
    assert tokenizer.token_bytes(last) == b"<pad>"
    assert tokenizer.is_special(last)
