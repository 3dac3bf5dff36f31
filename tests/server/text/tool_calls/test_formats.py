"""Each way of writing calls: what of a text is a call, and which way a template shows."""

from __future__ import annotations

import re

import pytest

from server.text.tool_calls.formats import (
    FORMATS,
    HERMES,
    LLAMA,
    MISTRAL,
    PLAIN_JSON,
    PYTHONIC,
    detect_format,
)
from server.text.tool_calls.parser import ToolOffer

F = '{"name": "f", "arguments": {"a": 1}}'


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        (f"<tool_call>\n{F}\n</tool_call>", [("f", '{"a": 1}')], ""),
        (f"Hm.\n<tool_call>{F}</tool_call>\nSo.", [("f", '{"a": 1}')], "Hm.\nSo."),
        (f"<tool_call>{F}</tool_call>\n<tool_call>{F}</tool_call>\n", [("f", '{"a": 1}')] * 2, ""),
        (f"<tool_call>{F}", [("f", '{"a": 1}')], ""),
        ('<tool_call>{"arguments":{"a":1},"name":"x"}</tool_call>', [("x", '{"a": 1}')], ""),
        ('<tool_call>{"name":"f","arguments":"{\\"a\\":1}"}</tool_call>', [("f", '{"a":1}')], ""),
        ('<tool_call>{"name":"f"}</tool_call>', [("f", "{}")], ""),
        ('<tool_call>{"name":"f","arguments":{"a": "</tool_call>"}}</tool_call>', [("f", '{"a": "</tool_call>"}')], ""),
        ('<tool_call>{"name":"f","arguments":{"a": 1}</tool_call>.', [("f", '{"a": 1}')], "."),
        ("<tool_call>{'name': 'f'}</tool_call>", [], "<tool_call>{'name': 'f'}</tool_call>"),
        (f"<tool_call> <tool_call>{F}</tool_call>", [("f", '{"a": 1}')], "<tool_call> "),
        ('<tool_call>{"name":"f","arguments":{a: 1}}</tool_call> x', [("f", "{a: 1}}")], " x"),
        ('<tool_call>{"name":5,"arguments":{}}', [], '<tool_call>{"name":5,"arguments":{}}'),
        ('<tool_call>{"name":"","arguments":{}}', [], '<tool_call>{"name":"","arguments":{}}'),
        (F, [], F),
    ],
)
def test_hermes(read, text, calls, content) -> None:
    message = read("hermes", text)
    assert (message.named, message.content) == (calls, content)


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ('{"name": "f", "parameters": {"a": 1}}', [("f", '{"a": 1}')], ""),
        ('\n{"type": "function", "function": "g", "parameters": {}}\n', [("g", "{}")], ""),
        ('{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', [("f", "{}"), ("g", "{}")], ""),
        ('<|python_tag|>{"name": "x", "parameters": {}}', [("x", "{}")], ""),
        ('Hm. <|python_tag|>{"name": "f", "parameters": {}}', [("f", "{}")], "Hm."),
        ('{"name": "x", "parameters": {}}', [], '{"name": "x", "parameters": {}}'),
        ('{"city": "Rome"}', [], '{"city": "Rome"}'),
        ('So {"name": "f", "parameters": {}}', [], 'So {"name": "f", "parameters": {}}'),
    ],
)
def test_llama(read, text, calls, content) -> None:
    message = read("llama3_json", text)
    assert (message.named, message.content) == (calls, content)


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        (f"[TOOL_CALLS][{F}]", [("f", '{"a": 1}')], ""),
        (f"[TOOL_CALLS] [{F}, {F}]", [("f", '{"a": 1}')] * 2, ""),
        (f"[TOOL_CALLS]{F}", [("f", '{"a": 1}')], ""),
        ('Hm.[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g{}', [("f", '{"a": 1}'), ("g", "{}")], "Hm."),
        ("[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}", [("f", "{}")], ""),
        ("[TOOL_CALLS][]", [], "[TOOL_CALLS][]"),
        ("[TOOL_CALLS]no call {}", [], "[TOOL_CALLS]no call {}"),
        ("[TOOL_CALLS]" + "x" * 300 + "{}", [], "[TOOL_CALLS]" + "x" * 300 + "{}"),
    ],
)
def test_mistral(read, text, calls, content) -> None:
    message = read("mistral", text)
    assert (message.named, message.content) == (calls, content)


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ('[f(a="x)", b=[1, -2]), g()]', [("f", '{"a": "x)", "b": [1, -2]}'), ("g", "{}")], ""),
        ("<|python_start|>[f(a={'k': None, 'b': True})]<|python_end|>", [("f", '{"a": {"k": null, "b": true}}')], ""),
        ("[x(a=1)]", [], "[x(a=1)]"),
        ("[f(1)]", [], "[f(1)]"),
        ("[f(**{})]", [], "[f(**{})]"),
        ("[f(a=open('x'))]", [], "[f(a=open('x'))]"),
        ("[f(a=1e999)]", [], "[f(a=1e999)]"),
        ("[f(a=1), f(a=b)]", [("f", '{"a": 1}')], ", f(a=b)]"),
        ("Take [f(a=1)]", [], "Take [f(a=1)]"),
    ],
)
def test_pythonic(read, text, calls, content) -> None:
    message = read("pythonic", text)
    assert (message.named, message.content) == (calls, content)


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        (F, [("f", '{"a": 1}')], ""),
        (f" [{F}, {F}]\n", [("f", '{"a": 1}')] * 2, ""),
        (f"{F}\n{F}\n", [("f", '{"a": 1}')] * 2, ""),
        ('{"name": "x", "arguments": {}}', [], '{"name": "x", "arguments": {}}'),
        ('{"name": "Ann", "age": 5}', [], '{"name": "Ann", "age": 5}'),
        ("[1, 2]", [], "[1, 2]"),
        (f"So: {F}", [], f"So: {F}"),
    ],
)
def test_plain_json(read, text, calls, content) -> None:
    message = read("json", text)
    assert (message.named, message.content) == (calls, content)


def test_arguments_are_told_while_they_come() -> None:
    parser = HERMES.parser(ToolOffer(names=["f"], make_id=HERMES.make_id))
    assert parser.feed('<tool_call>{"name": "f", "arguments":').calls == ()
    [first, arguments] = parser.feed(' {"a').calls
    assert (first.name, first.arguments, arguments.arguments) == ("f", "", '{"a')
    assert [one.arguments for one in parser.feed('": 1').calls] == ['": 1']


def test_ids_are_what_each_familys_templates_take() -> None:
    assert re.fullmatch(r"[a-zA-Z0-9]{9}", MISTRAL.make_id())
    assert re.fullmatch(r"call_[0-9a-f]{24}", HERMES.make_id())
    assert HERMES.make_id() != HERMES.make_id()


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", PLAIN_JSON),
        ("{% if tools %}Write <tool_call>{...}</tool_call>{% endif %}", HERMES),
        ("{% if tools %}<tool_call><function=name>{% endif %}", None),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}{{ '[TOOL_CALLS]' }}", MISTRAL),
        ("{% if tools %}{{ '<|python_tag|>' }}{% endif %}", LLAMA),
        ('{% if tools %}{"name": function name, "parameters": dictionary}{% endif %}', LLAMA),
        ("{% if tools %}{{ '{\\'name\\': x, \\'parameters\\': y}' }}{% endif %}", LLAMA),
        ("{% if tools %}[get(key=value)]{% endif %}", PYTHONIC),
        ("{% if tools %}<|python_start|>{% endif %}", PYTHONIC),
        ("{% if tools %}<|channel|>{% endif %}", None),
    ],
)
def test_a_template_shows_how_its_model_writes_calls(template, expected) -> None:
    assert detect_format(template) is expected


def test_formats_are_found_by_name() -> None:
    assert set(FORMATS) == {"hermes", "llama3_json", "mistral", "pythonic", "json"}
