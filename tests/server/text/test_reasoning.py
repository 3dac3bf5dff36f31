"""Reasoning and answer, whole and in pieces."""

from __future__ import annotations

import pytest

from server.text.message_parser import MessageDelta, MessageParser
from server.text.reasoning import MISTRAL, THINK, ReasoningSplitter, detect_tags
from server.text.tool_calls.formats import HERMES
from server.text.tool_calls.parser import ToolOffer


def split(*pieces: str, is_open: bool = False) -> tuple[str, str]:
    splitter = ReasoningSplitter(THINK, is_open=is_open)
    parts = [splitter.feed(piece) for piece in pieces] + [splitter.finish()]
    reasoning, answer = "".join(part.reasoning for part in parts), "".join(part.answer for part in parts)
    assert "".join(pieces)[splitter.num_skipped :] == answer
    return reasoning, answer


CASES = [
    ("<think>\nHm. So.\n</think>\n\nFour. ", False, ("Hm. So.", "Four. ")),
    ("\n <think>a </thin b</think>c", False, ("a </thin b", "c")),
    ("<think>\n\n</think>\n\nFour", False, ("", "Four")),
    ("Hm.\n</think>\n4", True, ("Hm.", "4")),
    ("<think>", False, ("", "")),
    ("<think>only this \n", False, ("only this \n", "")),
    ("<think>x</thi", False, ("x</thi", "")),
    ("Four <think>no</think>", False, ("", "Four <think>no</think>")),
    (" <thought>", False, ("", " <thought>")),
    ("<thi", False, ("", "<thi")),
    ("a</think>b", False, ("", "a</think>b")),
    ("<think>a</think>b<think>c</think>", False, ("a", "b<think>c</think>")),
    ("", True, ("", "")),
]


@pytest.mark.parametrize(("text", "is_open", "expected"), CASES)
def test_reasoning_is_what_stands_between_tags_at_the_beginning(text, is_open, expected) -> None:
    assert split(text, is_open=is_open) == expected
    assert split(*text, is_open=is_open) == expected
    for place in range(len(text)):
        assert split(text[:place], text[place:], is_open=is_open) == expected


def test_reasoning_is_told_while_it_comes() -> None:
    splitter = ReasoningSplitter(THINK, is_open=False)
    assert splitter.feed("<think>\nabc").reasoning == "abc"
    assert splitter.feed(" d </").reasoning == " d"
    assert splitter.feed("x").reasoning == " </x"


def test_a_prompt_may_have_opened_the_reasoning() -> None:
    assert THINK.is_open_at_end("<|im_start|>assistant\n<think>\n")
    assert not THINK.is_open_at_end("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not THINK.is_open_at_end("say <think> please<|im_start|>assistant\n")


def test_a_template_shows_its_tags() -> None:
    assert detect_tags("{{ '<think>' }}") is THINK
    assert detect_tags("{{ content.split('</think>')[-1] }}") is THINK
    assert detect_tags("{{ '[THINK]' }}") is MISTRAL
    assert detect_tags("{{ content }}") is None


TEXT = '<think>A <tool_call> it is.</think>\nWell.\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\n'


def parse(*pieces: str) -> MessageDelta:
    offer = ToolOffer(names=["f"], make_id=lambda: "id")
    parser = MessageParser(ReasoningSplitter(THINK, is_open=False), HERMES.parser(offer))
    deltas = [parser.feed(piece) for piece in pieces] + [parser.finish(is_cut=False)]
    assert parser.num_calls == 1
    text = "".join(pieces)
    content = "".join(delta.content for delta in deltas)
    assert content == "".join(text[start:end] for delta in deltas for start, end in delta.spans)
    calls = tuple(call for delta in deltas for call in delta.tool_calls)
    return MessageDelta(content, "".join(delta.reasoning for delta in deltas), calls)


def test_reasoning_content_and_calls_of_one_message_are_parted() -> None:
    whole = parse(TEXT)
    assert (whole.content, whole.reasoning) == ("Well.", "A <tool_call> it is.")
    assert [call.name for call in whole.tool_calls] == ["f", None]
    assert "".join(call.arguments for call in whole.tool_calls) == '{"a": 1}'
    for place in range(len(TEXT)):
        part = parse(TEXT[:place], TEXT[place:])
        assert (part.content, part.reasoning) == (whole.content, whole.reasoning)
        assert "".join(call.arguments for call in part.tool_calls) == '{"a": 1}'


def test_text_of_a_model_without_either_passes_as_it_is() -> None:
    parser = MessageParser(None, None)
    assert parser.feed(" <think>").content == " <think>"
    assert parser.feed("x ").spans == ((8, 10),)
    assert parser.finish(is_cut=False) == MessageDelta()
