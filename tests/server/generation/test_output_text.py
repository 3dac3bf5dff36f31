"""The text of a sequence, its stop strings and log probabilities. Ids like D08 name cases known from other servers."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from server.generation.output_text import OutputText, TextRules
from server.text.token_spelling import BYTE_LEVEL_ALPHABET
from server.text.tokenizer import Tokenizer


def tell(tokenizer, rate, text: str, portion: int, rules: TextRules) -> tuple[list[str], list, OutputText]:
    """Texts and tokens as they come of an answer in pieces of ``portion`` tokens; the last of each from its end."""
    ids = tokenizer.encode(text)
    output = OutputText(tokenizer, rules)
    texts, tokens = [], []
    for start in range(0, len(ids), portion):
        piece = ids[start : start + portion]
        texts.append(output.feed(piece, [rate(token_id, 2) for token_id in piece]))
        tokens.append(output.take_logprobs())
        if output.stop is not None:
            return texts, tokens, output
    texts.append(output.finish())
    tokens.append(output.take_logprobs(at_end=True))
    return texts, tokens, output


@given(
    text=st.text(alphabet="abc é👋", max_size=12),
    stops=st.lists(st.text(alphabet="abc é👋", min_size=1, max_size=3), max_size=3),
    portion=st.integers(1, 5),
    includes_stop=st.booleans(),
    min_tokens=st.integers(0, 6),
)
def test_b12_b18_tokens_joined_are_the_text_and_its_bytes_at_every_delta(
    byte_tokenizer, rate, text, stops, portion, includes_stop, min_tokens
) -> None:
    rules = TextRules(stops=stops, includes_stop=includes_stop, min_tokens=min_tokens)
    texts, tokens, output = tell(byte_tokenizer, rate, text, portion, rules)
    for count in range(len(texts)):
        so_far = [token for some in tokens[: count + 1] for token in some]
        assert "".join(token.text for token in so_far) == "".join(texts[: count + 1])  # none later than its text
    whole = "".join(texts)
    assert b"".join(token.content for some in tokens for token in some) == whole.encode()
    offset = 0
    for token in so_far:
        assert token.offset == offset
        offset += len(token.text)
    if output.stop is None:
        assert whole == text
        assert len(so_far) == len(text.encode())
    else:
        end = text.encode()[: output.num_tokens].decode(errors="ignore")
        assert end.endswith(output.stop)
        assert whole == (end if includes_stop else end.removesuffix(output.stop))


def test_d08_text_is_held_back_only_while_it_is_the_start_of_a_stop_string(byte_tokenizer, rate) -> None:
    texts, tokens, _ = tell(byte_tokenizer, rate, "a,b,b<c", 1, TextRules(stops=("b,c", "<d>")))
    assert texts == ["a", ",", "", "", "b,", "b", "<c", ""]
    assert [[token.text for token in some] for some in tokens] == [
        ["a"],
        [","],
        [],
        [],
        ["b", ","],
        ["b"],
        ["<", "c"],
        [],
    ]


@given(
    text=st.text(alphabet="ab漢字👋🇯🇵e\u0301", max_size=16),
    stops=st.lists(st.text(alphabet="ab漢字👋🇯🇵e\u0301", min_size=1, max_size=5), min_size=1, max_size=4),
)
@example(text="ab👩\u200d👩\u200d👧", stops=["👩\u200d👩\u200d👦", "b👩\u200d👧", "\u200d👧!"])
@example(text="aaaa漢漢字漢漢", stops=["漢漢字漢漢漢", "漢字漢b"])
def test_d04_d08_d09_exactly_the_longest_beginning_of_a_stop_string_is_held_at_every_token(
    byte_tokenizer, text, stops
) -> None:
    output = OutputText(byte_tokenizer, TextRules(stops=stops))
    ids = byte_tokenizer.encode(text)
    emitted = ""
    for count, token_id in enumerate(ids, 1):
        emitted += output.feed([token_id])
        complete = text.encode()[:count].decode(errors="ignore")
        if output.stop is not None:
            assert output.stop == max((stop for stop in stops if complete.endswith(stop)), key=len)
            assert emitted + output.finish() == complete.removesuffix(output.stop)
            return
        assert not any(stop in complete for stop in stops)
        beginnings = [stop[:length] for stop in stops for length in range(len(stop))]
        held = max((one for one in beginnings if complete.endswith(one)), key=len)
        assert emitted + held == complete
    assert emitted + output.finish() == text


def test_d05_a_stop_string_of_many_tokens_is_found_and_its_tokens_are_not_told(byte_tokenizer, rate) -> None:
    texts, tokens, output = tell(byte_tokenizer, rate, "N O P Q R", 1, TextRules(stops=("O P Q",)))
    assert "".join(texts) == "N "
    assert [token.text for some in tokens for token in some] == ["N", " "]
    assert (output.stop, output.num_tokens) == ("O P Q", len("N O P Q"))


def test_an_included_stop_string_is_told_to_its_end_and_no_further(byte_tokenizer, rate) -> None:
    texts, tokens, _ = tell(byte_tokenizer, rate, "xENDy", 5, TextRules(stops=("END",), includes_stop=True))
    assert "".join(texts) == "xEND"
    assert [token.text for some in tokens for token in some] == list("xEND")


@pytest.mark.parametrize(
    ("token", "stop", "text", "content"),
    [("there", "ere", "th", b"th"), ("there", "there!", "there", b"there"), ("\x8bxy", "xy", "👋", b"\x8b")],
)
def test_a_token_that_reaches_into_a_stop_string_is_told_up_to_it(token, stop, text, content, rate) -> None:
    letters = {byte: letter for letter, byte in BYTE_LEVEL_ALPHABET.items()}
    spelled = "".join(letters[byte] for byte in token.encode("latin-1"))
    tokenizer = Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": [*BYTE_LEVEL_ALPHABET, spelled],
            "tokenizer.ggml.token_type": [1] * 257,
            "tokenizer.ggml.merges": [],
        }
    )
    start = tokenizer.encode("👋")[:3] if text == "👋" else []
    output = OutputText(tokenizer, TextRules(stops=(stop,)))
    ids = [*start, 256]
    shown = output.feed(ids, [rate(token_id, 0) for token_id in ids]) + output.finish()
    last = output.take_logprobs(at_end=True)[-1]
    assert shown == text
    assert (last.text, last.content) == (text, content)


def test_the_first_min_tokens_tokens_are_not_searched_for_stop_strings(byte_tokenizer, rate) -> None:
    texts, _, output = tell(byte_tokenizer, rate, "end end end", 1, TextRules(stops=("end",), min_tokens=3))
    assert "".join(texts) == "end "
    assert output.num_tokens == len("end end")


def test_the_parts_of_a_character_come_with_the_token_that_completes_it(byte_tokenizer, rate) -> None:
    texts, tokens, _ = tell(byte_tokenizer, rate, "a👋", 1, TextRules())
    assert texts == ["a", "", "", "", "👋", ""]
    assert [len(some) for some in tokens] == [1, 0, 0, 0, 4, 0]
    assert [(token.text, token.content) for token in tokens[4]] == [
        ("", b"\xf0"),
        ("", b"\x9f"),
        ("", b"\x91"),
        ("👋", b"\x8b"),
    ]


@pytest.mark.parametrize("num_bytes", [1, 2, 3])
def test_d02_a_character_cut_at_the_end_is_the_last_tokens_one_replacement(byte_tokenizer, rate, num_bytes) -> None:
    ids = byte_tokenizer.encode("a👋")[: 1 + num_bytes]
    output = OutputText(byte_tokenizer, TextRules())
    text = output.feed(ids, [rate(token_id, 0) for token_id in ids]) + output.finish()
    tokens = output.take_logprobs(at_end=True)
    assert text == "a\ufffd"
    assert [token.text for token in tokens] == ["a", *[""] * (num_bytes - 1), "\ufffd"]


def test_special_tokens_are_shown_only_if_that_is_asked_for(byte_tokenizer, rate) -> None:
    ids = [*byte_tokenizer.encode("a"), 256, *byte_tokenizer.encode("b")]
    assert OutputText(byte_tokenizer, TextRules()).feed(ids) == "ab"
    assert OutputText(byte_tokenizer, TextRules(skips_special_tokens=False)).feed(ids) == "a<|end|>b"
