"""Fields that say what the output must be: what reaches the engine, and what is refused by name before it does."""

from __future__ import annotations

import json

import pytest
from llguidance import LLMatcher

from engine.grammar_source import source_of
from engine.sampling_params import Grammar, GrammarKind
from scheduler.request import FinishReason
from server.openai.body import WrongField
from server.openai.structured_output import ToolSignature, grammar_of_tool_calls

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON_SCHEMA = Grammar(
    GrammarKind.JSON_SCHEMA, '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'
)
FORMAT = {"type": "json_schema", "json_schema": {"name": "one", "schema": SCHEMA, "strict": True}}
EBNF = 'root ::= "a" | "b" root'
PATHS = ("completion", "chat")


def grammar_of(engine: object) -> Grammar | None:
    return engine.requests[-1].sampling.grammar


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"response_format": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar(GrammarKind.JSON_OBJECT)),
        ({"response_format": FORMAT}, JSON_SCHEMA),
        ({"structured_outputs": None}, None),
        ({"structured_outputs": {"json": SCHEMA}}, JSON_SCHEMA),
        ({"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}}, JSON_SCHEMA),
        ({"structured_outputs": {"json": True}}, Grammar(GrammarKind.JSON_SCHEMA, "true")),
        ({"structured_outputs": {"json_object": True}}, Grammar(GrammarKind.JSON_OBJECT)),
        ({"structured_outputs": {"regex": "a+", "disable_any_whitespace": False}}, Grammar(GrammarKind.REGEX, "a+")),
        ({"structured_outputs": {"choice": ["ja", "nein"]}}, Grammar(GrammarKind.CHOICE, '["ja","nein"]')),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, Grammar(GrammarKind.LARK, 'start: "a"')),
        ({"structured_outputs": {"grammar": EBNF}}, Grammar(GrammarKind.LARK, EBNF)),
        ({"guided_json": SCHEMA}, JSON_SCHEMA),
        ({"guided_regex": "a+"}, Grammar(GrammarKind.REGEX, "a+")),
        ({"guided_choice": ["ja"], "response_format": {"type": "text"}}, Grammar(GrammarKind.CHOICE, '["ja"]')),
        ({"guided_grammar": 'start: "a"'}, Grammar(GrammarKind.LARK, 'start: "a"')),
    ],
)
async def test_e11_each_field_becomes_a_grammar_whatever_the_prompt_says(api, engine, path, fields, grammar) -> None:
    assert (await getattr(api, path)(**fields)).status_code == 200
    assert grammar_of(engine) == grammar


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        # A09: the schema is not in an object of its own
        (
            {"response_format": {"type": "json_schema", "schema": SCHEMA}},
            "response_format.json_schema",
            "missing_parameter",
        ),
        ({"response_format": {}}, "response_format.type", "missing_parameter"),
        ({"response_format": {"type": "sound"}}, "response_format.type", None),  # E11
        ({"response_format": "json"}, "response_format", None),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema", "unknown_parameter"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
            "missing_parameter",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            "response_format.json_schema.name",
            "missing_parameter",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": SCHEMA}}},
            "response_format.json_schema.name",
            None,
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": [1]}}},
            "response_format.json_schema.schema",
            None,
        ),
        ({"structured_outputs": 3}, "structured_outputs", None),  # A08
        ({"structured_outputs": {}}, "structured_outputs", None),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", None),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex", None),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", None),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", None),
        ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice", None),
        (
            {"structured_outputs": {"whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
            "unsupported_parameter",
        ),
        ({"structured_outputs": {"xml": "a"}}, "structured_outputs.xml", "unknown_parameter"),
        ({"structured_outputs": {"regex": "a"}, "guided_regex": "a"}, "guided_regex", None),
        ({"response_format": FORMAT, "structured_outputs": {"regex": "a"}}, "structured_outputs", None),
        ({"guided_decoding_backend": "x"}, "guided_decoding_backend", "unknown_parameter"),
    ],
)
async def test_a08_a09_e11_a_wrong_form_is_refused_by_the_name_of_the_innermost_field(
    api, engine, path, fields, param, code
) -> None:
    api.assert_error(await getattr(api, path)(**fields), 400, param=param, code=code)
    assert engine.requests == []


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        # E05
        ({"structured_outputs": {"json": {"type": 123}}}, "structured_outputs", "type must be a string"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "hiccup"}}}},
         "response_format", "Invalid type: hiccup"),
        ({"structured_outputs": {"regex": "a("}}, "structured_outputs", "unclosed group"),
        ({"structured_outputs": {"grammar": "start: b"}}, "structured_outputs", 'unknown name: "b"'),
        ({"structured_outputs": {"grammar": "start: start"}}, "structured_outputs", "no output can follow it"),
        ({"structured_outputs": {"regex": "a[b&&c]"}}, "structured_outputs", "no output can follow it"),
        ({"guided_json": {"$ref": "#"}}, "guided_json", "no output can follow it"),
        ({"structured_outputs": {"grammar": 'root ::= "a'}}, "structured_outputs", "line 1"),
        ({"structured_outputs": {"grammar": '%llguidance {}\nstart: "a"'}}, "structured_outputs", "%llguidance"),
        # E06: a keyword that is valid and that an output would not be held to
        ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json", 'Unimplemented keys: ["uniqueItems"]'),
        ({"guided_json": {"not": {}, "x-guidance": {"lenient": True}}}, "guided_json", 'Unimplemented keys: ["not"]'),
        ({"guided_json": {"$ref": "http://octavo.test/schema"}}, "guided_json", "fetch"),
        ({"guided_json": {"items": {"prefixItems": [{"type": "string"}], "additionalItems": False}}}, "guided_json",
         "additionalItems beside prefixItems"),
    ],
)  # fmt: skip
async def test_e05_e06_what_does_not_compile_is_refused_with_the_reason(api, engine, fields, param, message) -> None:
    told = api.assert_error(await api.completion(**fields), 400, param=param, code="invalid_grammar")
    assert message in told
    assert (await api.completion()).status_code == 200


async def test_what_takes_for_ever_to_compile_is_refused_and_stalls_nobody(api, monkeypatch) -> None:
    monkeypatch.setattr("server.grammar_checker.MOST_SECONDS", 3.0)
    endless = {"allOf": [{"type": "string", "pattern": f"a{number}.*"} for number in range(30)]}
    told = api.assert_error(await api.completion(guided_json=endless), 400, param="guided_json", code="invalid_grammar")
    assert "too complex" in told


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"guided_regex": "a" * 65_537}, "guided_regex", "at most 65536 characters, not 65537"),
        ({"guided_choice": ["a"] * 2049}, "guided_choice", "at most 2048 strings, not 2049"),
        ({"guided_json": json.loads('{"items":' * 64 + "{}" + "}" * 64)}, "guided_json", "nested deeper than 64"),
    ],
)
async def test_what_is_too_large_is_refused_unread(api, engine, state, fields, param, message) -> None:
    state.max_request_bytes = 1 << 20
    assert message in api.assert_error(await api.completion(**fields), 400, param=param)
    assert engine.requests == []


async def test_stops_are_not_looked_for_in_what_a_grammar_ends(api, engine) -> None:
    engine.answer('{"a": [user] 1}', finish=FinishReason.STOP)
    answer = await api.chat(response_format={"type": "json_object"}, stop=["1"], stop_token_ids=[49], max_tokens=60)
    assert answer.json()["choices"][0]["message"]["content"] == '{"a": [user] 1}'
    assert engine.requests[0].sampling.stop_token_ids == []


TOOLS = [
    ToolSignature("look_up", {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}),
    ToolSignature('say "hi"', {"type": "object", "properties": {}, "additionalProperties": False}),
]


def follows(grammar: Grammar, text: str) -> bool:
    from llguidance import LLTokenizer

    matcher = LLMatcher(LLTokenizer("byte"), source_of(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return all(matcher.consume_token(byte) for byte in text.encode()) and matcher.is_accepting()


@pytest.mark.parametrize(
    "places",
    [
        {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
        {"items": [{"type": "string"}, {"type": "integer"}], "additionalItems": False},
        {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}, {"type": "integer"}],
         "additionalItems": False},
    ],
)  # fmt: skip
def test_e06_tuples_are_kept_as_either_draft_writes_them(places) -> None:
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps({"type": "array", "minItems": 2} | places))
    texts = ['["a", 5]', '["a"]', '[5, "a"]', '["a", "b"]', '["a", 5, 6]']
    assert [text for text in texts if follows(grammar, text)] == ['["a", 5]']


@pytest.mark.parametrize(
    ("text", "one", "many"),
    [
        ('<call>{"name": "look_up", "arguments": {"key": "x"}}</call>', True, True),
        ('<call>{"name": "say \\"hi\\"", "arguments": {}}</call>', True, True),
        ('<call>{"name": "look_up", "arguments": {"key": 5}}</call>', False, False),
        ('<call>{"name": "other", "arguments": {}}</call>', False, False),
        ('<call>{"name": "say \\"hi\\"", "arguments": {"key": "x"}}</call>', False, False),
        ("\n".join(['<call>{"name": "look_up", "arguments": {"key": ""}}</call>'] * 2), False, True),
        ("", False, False),
    ],
)  # fmt: skip
def test_a_grammar_of_tool_calls_has_calls_of_the_tools_and_nothing_else(text, one, many) -> None:
    around = {"begin": "<call>", "end": "</call>", "separator": "\n"}
    assert follows(grammar_of_tool_calls(TOOLS, **around), text) is one
    assert follows(grammar_of_tool_calls(TOOLS, parallel=True, **around), text) is many


def test_tool_calls_may_be_a_json_array() -> None:
    grammar = grammar_of_tool_calls(TOOLS, before="[", separator=", ", after="]", parallel=True)
    text = '[{"name": "look_up", "arguments": {"key": "x"}}, {"name": "look_up", "arguments": {"key": "y"}}]'
    assert follows(grammar, text)


def test_a_tool_whose_schema_is_too_deep_is_named() -> None:
    deep = json.loads('{"items":' * 64 + "{}" + "}" * 64)
    with pytest.raises(WrongField) as refused:
        grammar_of_tool_calls([TOOLS[0], ToolSignature("deep", deep)])
    assert refused.value.location == (1, "function", "parameters")
