from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.text.detokenizer import Detokenizer
from server.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
SPECIAL = 1000


class ListedBytes:
    """A vocabulary of one's own choice: token i is the i-th byte string."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = tokens

    def token_bytes(self, token_id: int) -> bytes:
        return b"<end>" if token_id == SPECIAL else self._tokens[token_id]

    def is_special(self, token_id: int) -> bool:
        return token_id == SPECIAL


def split_bytes(text: str) -> ListedBytes:
    return ListedBytes([bytes([byte]) for byte in text.encode()])


CHARACTERS = ["👋", "ď", "漢", "👩‍👩‍👧‍👦", "a👋🏽b"]


@pytest.mark.parametrize("text", CHARACTERS)
def test_d01_character_split_over_tokens_arrives_whole(text: str) -> None:
    detokenizer = Detokenizer(split_bytes(text))
    deltas = [detokenizer.feed([index]) for index in range(len(text.encode()))]
    assert [delta for delta in deltas if delta] == list(text)
    assert detokenizer.finish() == ""


@pytest.mark.parametrize("text", [*CHARACTERS, "Grüße aus 東京 🇯🇵\n\n  end"])
def test_d01_d03_demo_model_bytes_stream_to_the_same_text(default_tokenizer: Tokenizer, text: str) -> None:
    first_byte = default_tokenizer.encode("\x00", add_special_tokens=False)[0]
    for ids in (
        default_tokenizer.encode(text, add_special_tokens=False),
        [first_byte + byte for byte in text.encode()],
    ):
        detokenizer = Detokenizer(default_tokenizer)
        deltas = [detokenizer.feed([token_id]) for token_id in ids]
        assert not any(REPLACEMENT in delta for delta in deltas)
        assert "".join(deltas) + detokenizer.finish() == text == default_tokenizer.decode(ids)


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_d02_end_inside_a_character_gives_one_replacement_in_both_modes(kept: int) -> None:
    vocabulary = split_bytes("ab👋")
    ids = range(2 + kept)
    streamed = Detokenizer(vocabulary)
    deltas = [streamed.feed([index]) for index in ids]
    assert deltas == ["a", "b"] + [""] * kept
    assert streamed.finish() == REPLACEMENT
    at_once = Detokenizer(vocabulary)
    assert at_once.feed(ids) + at_once.finish() == "ab" + REPLACEMENT


def test_generated_text_keeps_its_leading_space(default_tokenizer: Tokenizer) -> None:
    ids = default_tokenizer.encode(" Paris", add_special_tokens=False)
    assert Detokenizer(default_tokenizer).feed(ids) == " Paris"


def test_special_tokens_are_left_out_even_inside_a_character() -> None:
    vocabulary = ListedBytes([b"\xc4", b"\x8f"])
    assert Detokenizer(vocabulary).feed([0, SPECIAL, 1]) == "ď"


def test_special_tokens_can_be_shown() -> None:
    detokenizer = Detokenizer(ListedBytes([b"a"]), skip_special_tokens=False)
    assert detokenizer.feed([0, SPECIAL]) == "a<end>"


# Mostly pieces of real characters, so that invalid and unfinished sequences of every kind come up.
FRAGMENTS = st.sampled_from([b"\xf0", b"\x9f", b"\x91\x8b", b"\xe6\xbc", b"\xa2", b"\xc4", b"a", b"\xed\xa0", b"\xff"])


@given(st.lists(FRAGMENTS | st.binary(max_size=4), max_size=12), st.lists(st.integers(1, 4), min_size=12, max_size=12))
def test_any_bytes_in_any_portions_decode_as_they_do_at_once(tokens: list[bytes], portions: list[int]) -> None:
    detokenizer = Detokenizer(ListedBytes(tokens))
    ids = list(range(len(tokens)))
    text = ""
    for portion in portions:
        text += detokenizer.feed(ids[:portion])
        del ids[:portion]
    text += detokenizer.feed(ids) + detokenizer.finish()
    assert text == b"".join(tokens).decode("utf-8", "replace")
