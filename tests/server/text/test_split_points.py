"""A corpus of what is hard to stream, cut at every point, in every kind of vocabulary.

A text's tokens are taken as the tokenizer makes them, one for each byte, and with a control token after each of them,
which then also lies inside characters. Ids like D01 name cases known from other servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from server.text.detokenizer import Detokenizer
from server.text.token_spelling import BYTE_LEVEL_ALPHABET
from server.text.tokenizer import Tokenizer
from tests.server.text.test_tokenizer import byte_level_backend, save, sentencepiece_backend

REPLACEMENT = "\ufffd"

CORPUS = {
    "words": "Hello hello, the world's 123 words  --  !!",
    "emoji": "Hi 👋 👍🏿 ☕️ a👋🏽b 😀😃😄",
    "families": "👩‍👩‍👧‍👦 and 🏳️‍🌈, 👩🏽‍🚀❤️‍🔥",
    "flags": "🇯🇵🇩🇪🇧🇷 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "cjk": "東京は夜です。漢字かなカナ 한국어 中文、𠮷野家",
    "combining": "e\u0301 n\u0303 a\u0308\u0323 o\u0335\u0328\u0321\u034e नमस्ते ที่นี่ 각",
    "right to left": "שָׁלוֹם مرحبا \u202babc\u202c",
    "borders of utf-8": "\x00\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff",
    "replacement and order marks": "\ufeffa\ufffdb\ufffd\ufeff",
    "spaces": " a  b\tc\r\n\n\u00a0\u2003\u3000 ",
    "spelled like bytes": "<0xF0><0x9F> 0x20 <0x20>",
    "spelled like control tokens": "<s >< /s><| end|><eo s>",
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A tokenizer, how it names each byte, and what it puts before every text."""

    tokenizer: Tokenizer
    bytes_ids: Sequence[int]
    control_id: int
    before: str = ""

    def id_sequences(self, text: str) -> Iterator[list[int]]:
        """Each way to write ``text``, with what the tokenizer puts before it."""
        encoded = self.tokenizer.encode(text, add_special_tokens=False)
        spelled = [self.bytes_ids[byte] for byte in (self.before + text).encode()]
        for ids in (encoded, spelled):
            yield ids
            yield [self.control_id, *(one for token_id in ids for one in (token_id, self.control_id))]


def byte_pieces(tokenizer: Tokenizer) -> list[int]:
    return named(tokenizer, [f"<0x{byte:02X}>" for byte in range(256)])


def byte_letters(tokenizer: Tokenizer) -> list[int]:
    letters = {byte: letter for letter, byte in BYTE_LEVEL_ALPHABET.items()}
    return named(tokenizer, [letters[byte] for byte in range(256)])


def named(tokenizer: Tokenizer, spellings: Sequence[str]) -> list[int]:
    ids = [token_id for one in spellings if (token_id := tokenizer.token_id(one)) is not None]
    assert len(ids) == len(spellings)
    return ids


@pytest.fixture(
    params=["demo model", "gguf sentencepiece", "gguf byte-level", "json byte-level", "json sentencepiece", "tiny"]
)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    def fixture(name: str) -> Any:
        return request.getfixturevalue(name)

    directory = tmp_path_factory.mktemp("vocabulary")
    match request.param:
        case "demo model":
            tokenizer = fixture("default_tokenizer")
            return Kind(tokenizer, byte_pieces(tokenizer), tokenizer.bos_token_id)
        case "gguf sentencepiece":
            tokenizer = Tokenizer.from_gguf(fixture("sentencepiece_metadata"), cache_directory=directory)
            return Kind(tokenizer, byte_pieces(tokenizer), 2, before=" ")
        case "gguf byte-level":
            tokenizer = Tokenizer.from_gguf(fixture("byte_level_metadata"))
            return Kind(tokenizer, byte_letters(tokenizer), tokenizer.eos_token_ids[0])
        case "json byte-level":
            tokenizer = Tokenizer.from_directory(save(directory, byte_level_backend()))
            return Kind(tokenizer, byte_letters(tokenizer), named(tokenizer, ["<eos>"])[0])
        case "json sentencepiece":
            tokenizer = Tokenizer.from_directory(save(directory, sentencepiece_backend()))
            return Kind(tokenizer, byte_pieces(tokenizer), named(tokenizer, ["</s>"])[0], before=" ")
        case _:
            tokenizer = Tokenizer.from_directory(fixture("tiny_llama_dir"))
            return Kind(tokenizer, byte_letters(tokenizer), tokenizer.bos_token_id)


def stream(tokenizer: Tokenizer, parts: Sequence[Sequence[int]]) -> list[str]:
    """The deltas of ``parts``, and what comes at the end."""
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.feed(part) for part in parts), detokenizer.finish()]


def content(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    return b"".join(tokenizer.token_bytes(one) for one in ids if not tokenizer.is_special(one))


@pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS)
def test_d01_d03_cut_anywhere_the_deltas_are_the_text_in_whole_characters(kind: Kind, text: str) -> None:
    tokenizer = kind.tokenizer
    for ids in kind.id_sequences(text):
        assert tokenizer.decode(ids) == text
        for cut in range(len(ids) + 1):
            first, second, end = stream(tokenizer, [ids[:cut], ids[cut:]])
            assert first == content(tokenizer, ids[:cut]).decode(errors="ignore")  # all that is complete, and no more
            assert first + second == kind.before + text
            assert end == ""


@pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS)
def test_d01_d03_token_by_token_each_delta_is_the_characters_that_its_token_completes(kind: Kind, text: str) -> None:
    for ids in kind.id_sequences(text):
        *deltas, end = stream(kind.tokenizer, [[token_id] for token_id in ids])
        for count in range(1, len(ids) + 1):
            assert "".join(deltas[:count]) == content(kind.tokenizer, ids[:count]).decode(errors="ignore")
        assert "".join(deltas) == kind.before + text
        assert end == ""


@pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS)
def test_d02_ended_anywhere_a_stream_is_the_whole_decoded_at_once(kind: Kind, text: str) -> None:
    for ids in kind.id_sequences(text):
        for end in range(len(ids) + 1):
            kept = ids[:end]
            *deltas, tail = stream(kind.tokenizer, [[token_id] for token_id in kept])
            assert "".join(deltas) + tail == "".join(stream(kind.tokenizer, [kept]))
            assert "".join(deltas) + tail == content(kind.tokenizer, kept).decode(errors="replace")
            assert tail in ("", REPLACEMENT)
            assert (kind.before + text).startswith("".join(deltas))
