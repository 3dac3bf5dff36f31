"""What all formats have in common, whatever the text and however it is cut."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.text.tool_calls.formats import FORMATS
from server.text.tool_calls.parser import ToolOffer

OBJECT = '{"name": "f", "arguments": {"city": "São \\"P\\"", "days": [1, 2.5]}}'
HERMES = f"Let me see.\n<tool_call>\n{OBJECT}\n</tool_call>\n<tool_call>\n"
HERMES += '{"arguments": {"a": "</tool_call>"}, "name": "g"}\n</tool_call>'
MESSAGES = {
    "hermes": [
        HERMES,
        f"{HERMES} and that is it. \n",
        "a < b <tool <tool_call>no</tool_call> <tool_call> <tool_call>" + OBJECT,
        "<tool_call>{'name': 'f'}</tool_call>\n",
        '<tool_call>{"name": "f", "arguments": {"a": oops}}</tool_call> so',
        '<tool_call>{"name": "f"}</tool_call></tool_call>',
        '<tool_call>{"name": "f", "arguments": null, "id": 5}</tool_call',
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}',
    ],
    "llama3_json": [
        '{"name": "f", "parameters": {"a": 1}}',
        ' {"type": "function", "name": "f", "parameters": {"a": {}}}; {"name": "g", "parameters": {}} ',
        '<|python_tag|>{"name": "f", "parameters": {}}',
        '<|python_tag|>print("hi")',
        '{"name": "Alice", "parameters": {}} is not known',
        '{"answer": {"name": "f"}}',
        '{"name": "f", "parameters": {}}; and so on',
        'Well: {"name": "f", "parameters": {}}',
    ],
    "mistral": [
        f"[TOOL_CALLS][{OBJECT}, {OBJECT}]",
        f"One moment. [TOOL_CALLS] [{OBJECT}] Done",
        '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]123[ARGS]{}',
        '[TOOL_CALLS]f{"a": [1, {}]}',
        "[TOOL_CALLS][]",
        "[TOOL_CALLS] not a name {}",
        '[TOOL_CALLS][{"name": "f"}, {"nome": "g"}]',
        "[T [TOOL [[TOOL_CALLS]f[ARGS]{} x",
    ],
    "pythonic": [
        '[f(a="x, [y]", b=[1, 2], c={"k": None}), g()]',
        "<|python_start|>[f(a=-1.5, b=True)]<|python_end|>",
        '[f(a="\\"\\u00e9\\d")]',
        "[h(a=1)] is unknown",
        "[f(1)]",
        "[f(a=b)]",
        "[1, 2, 3]",
        "[f(a=1), and so on",
        "[note] f()",
    ],
    "json": [
        OBJECT,
        f"[{OBJECT}, {OBJECT}]\n",
        f"{OBJECT}\n{OBJECT} then",
        '{"name": "h", "arguments": {}}',
        '{"name": "f"}',
        "[1, 2]",
        "Hello there. ",
        '[{"name": "f", "arguments": {}}, {"name": "h", "arguments": {}}]',
    ],
}
CASES = [(name, text) for name, texts in MESSAGES.items() for text in texts]


@pytest.mark.parametrize(("name", "text"), CASES)
@pytest.mark.parametrize("cut", [False, True])
def test_two_pieces_and_single_characters_read_like_the_whole(read, name, text, cut) -> None:
    whole = read(name, text, cut=cut)
    for place in range(len(text) + 1):
        assert read(name, text[:place], text[place:], cut=cut) == whole
    assert read(name, *text, cut=cut) == whole


ALPHABET = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<tool", "<", ">", "\n", " ", OBJECT, '{"name": "f", "arguments": ', "{", "}", "[",
     "]", ",", "[TOOL_CALLS]", "[ARGS]", "[TOOL", "f", "g", "(", ")", "a=1", '"', "'", ":", ";", "\\", "é", "1",
     "<|python_tag|>", "<|python_start|>", "<|python_end|>"]
)  # fmt: skip


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from(sorted(FORMATS)), st.lists(ALPHABET, max_size=14), st.booleans(), st.booleans(), st.data())
def test_any_text_reads_the_same_in_any_pieces(read, name, parts, cut, single, data) -> None:
    text = "".join(parts)
    whole = read(name, text, cut=cut, single=single)
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    assert read(name, *pieces, cut=cut, single=single) == whole
    if not whole.calls and not cut:
        assert whole.content == text


@pytest.mark.parametrize(("name", "text"), CASES)
def test_a_text_cut_anywhere_tells_a_beginning_of_what_the_whole_tells(read, name, text) -> None:
    whole = read(name, text)
    for place in range(len(text)):
        part = read(name, text[:place], cut=True)
        for (_, called, arguments), (_, whole_called, whole_arguments) in zip(part.calls, whole.calls, strict=False):
            assert called == whole_called
            assert whole_arguments.startswith(arguments.split("<")[0])


def test_text_after_a_marker_that_a_limit_cut_before_the_name_is_not_shown(read) -> None:
    assert read("hermes", 'Now: <tool_call>\n{"name": "ge', cut=True).content == "Now:"
    assert read("mistral", '[TOOL_CALLS][{"na', cut=True).content == ""
    assert read("json", '{"name": "f', cut=True).content == '{"name": "f'


@pytest.mark.parametrize("name", ["hermes", "mistral", "llama3_json"])
def test_only_what_may_be_a_marker_is_held_back(name) -> None:
    format_ = FORMATS[name]
    parser = format_.parser(ToolOffer(names=["f"], make_id=format_.make_id))
    marker = format_.markers[0]
    assert parser.feed("a b").content == "a b"
    assert parser.feed(" " + marker[:3]).content == ""
    assert parser.feed("!").content == f" {marker[:3]}!"


def test_one_call_only_where_no_more_are_wanted(read) -> None:
    message = read("hermes", HERMES, single=True)
    assert (message.named, message.content) == ([("f", '{"city": "São \\"P\\"", "days": [1, 2.5]}')], "Let me see.")


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_long_texts_take_time_in_proportion(read, name) -> None:
    texts = ["<tool_call>" * 20_000, "\n" * 200_000, '{"name": ' * 20_000, "[TOOL_CALLS]" * 20_000, "[f(" * 60_000]
    texts += ["[" * 200_000, '{"name": "f", "arguments": ' + '{"a":' * 40_000]
    for text in texts:
        read(name, text)
