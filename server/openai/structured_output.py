"""Structured output: fields of a body that say what the output must be, as a `Grammar`.

Knows the wire formats, and looks at no more than form and size: whether a grammar compiles is found out by
`server.grammar_checker`. Nothing is ignored: what a schema asks for is kept, or the request is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from engine.sampling_params import JSON_WHITESPACE, Grammar, GrammarKind
from server.http.nesting import is_deeper
from server.openai.body import WrongField

OneGrammar = Grammar | None
MAX_GRAMMAR_CHARACTERS = 65_536
MAX_DEPTH = 64
MAX_CHOICES = 2048
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)

# Options of other servers' structured output, with the values that ask for nothing.
_NEUTRAL_OPTIONS: Mapping[str, tuple[object, ...]] = {
    "disable_any_whitespace": (False,),
    "disable_additional_properties": (False,),
    "disable_fallback": (False, True),
    "whitespace_pattern": (),
    "structural_tag": (),
}


@dataclass(frozen=True, slots=True)
class ToolSignature:
    """A function that may be called; ``parameters`` is the JSON schema of its arguments, an object's."""

    name: str
    parameters: Mapping[str, Any]


def read_response_format(value: object) -> OneGrammar:
    """``response_format``: text (no grammar), json_object or json_schema."""
    if value is None:
        return None
    fields = _object(value)
    kind = _required(fields, "type")
    if kind == "text":
        _refuse_others(fields, "type")
        return None
    if kind == "json_object":
        _refuse_others(fields, "type")
        return Grammar(GrammarKind.JSON_OBJECT)
    if kind != "json_schema":
        raise WrongField(f'"text", "json_object" or "json_schema", not {json.dumps(kind)[:40]}', "type")
    form = _object(_required(fields, "json_schema"), "json_schema")
    _refuse_others(fields, "type", "json_schema")
    name = _required(form, "name", "json_schema")
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise WrongField("1 to 64 letters, digits, underscores and dashes", "json_schema", "name")
    schema = _required(form, "schema", "json_schema")
    _refuse_others(form, "name", "schema", "strict", "description", within=("json_schema",))
    if not isinstance(form.get("strict"), (bool, type(None))):
        raise WrongField("must be a boolean", "json_schema", "strict")
    if not isinstance(form.get("description"), (str, type(None))):
        raise WrongField("must be a string", "json_schema", "description")
    return _schema(schema, "json_schema", "schema")


def read_structured_outputs(value: object) -> OneGrammar:
    """``structured_outputs``: exactly one of json, regex, choice, grammar and json_object."""
    if value is None:
        return None
    fields = _object(value)
    for name, neutral in _NEUTRAL_OPTIONS.items():
        if fields.get(name) is not None and fields[name] not in neutral:
            raise WrongField("is not supported", name, code="unsupported_parameter")
    _refuse_others(fields, *_READERS, "json_object", *_NEUTRAL_OPTIONS)
    given = [name for name in (*_READERS, "json_object") if fields.get(name) not in (None, False)]
    if len(given) != 1:
        raise WrongField(f"exactly one of {', '.join(_READERS)} and json_object, not {len(given)}")
    [name] = given
    if name == "json_object":
        if fields[name] is not True:
            raise WrongField("must be a boolean", name)
        return Grammar(GrammarKind.JSON_OBJECT)
    try:
        return _READERS[name](fields[name])
    except WrongField as error:
        raise WrongField(str(error), name, *error.location, code=error.code) from None


def read_json(value: object) -> OneGrammar:
    """A JSON schema, as such or as text."""
    if value is None:
        return None
    if isinstance(value, str):
        _check_size(value)
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise WrongField(f"is no JSON: {error}") from None
    return _schema(value)


def read_regex(value: object) -> OneGrammar:
    """A regular expression that the whole output matches."""
    return None if value is None else Grammar(GrammarKind.REGEX, _text(value))


def read_choice(value: object) -> OneGrammar:
    """A list of strings, one of which the output is."""
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise WrongField("must be a list of strings, at least one")
    if len(value) > MAX_CHOICES:
        raise WrongField(f"at most {MAX_CHOICES} strings, not {len(value)}")
    text = orjson.dumps(value).decode()
    _check_size(text)
    return Grammar(GrammarKind.CHOICE, text)


def read_grammar(value: object) -> OneGrammar:
    """A grammar in Lark, or in the EBNF of GBNF files."""
    return None if value is None else Grammar(GrammarKind.LARK, _text(value))


_READERS = {"json": read_json, "regex": read_regex, "choice": read_choice, "grammar": read_grammar}


def grammar_of_tool_calls(
    tools: Sequence[ToolSignature],
    *,
    begin: str = "",
    end: str = "",
    separator: str = "",
    before: str = "",
    after: str = "",
    parallel: bool = False,
) -> Grammar:
    """A call of one of ``tools``, or with ``parallel`` one or more: ``{"name": ..., "arguments": ...}``.

    Each call is between ``begin`` and ``end``, ``separator`` is between two, ``before`` and ``after`` are around all
    (``before="["``, ``separator=", "``, ``after="]"`` makes a JSON array). Raises WrongField for a schema that is too
    large or too deep, with the place of the tool.
    """
    rules = []
    for place, tool in enumerate(tools):
        try:
            arguments = _schema(tool.parameters).text
        except WrongField as error:
            raise WrongField(str(error), place, "function", "parameters") from None
        head = _literal(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
        rules.append(f"call_{place}: {head} arguments_{place} {_literal('}')}")
        rules.append(f"arguments_{place}: %json {_bounded(arguments)}")
    calls = " | ".join(f"call_{place}" for place in range(len(tools)))
    one = _sequence(_literal(begin), "call", _literal(end))
    more = f"({_sequence(_literal(separator), 'wrapped')})*" if parallel else ""
    rules += [f"call: {calls}", f"wrapped: {one}"]
    start = _sequence(_literal(before), "wrapped", more, _literal(after))
    return Grammar(GrammarKind.LARK, "\n".join([f"start: {start}", *rules, ""]))


def _bounded(schema: str) -> str:
    """The schema within a grammar, where it gets no options but its own: with a bound on blanks."""
    fields = json.loads(schema)
    if not isinstance(fields, dict):
        return schema
    return json.dumps({**fields, "x-guidance": {"whitespace_pattern": JSON_WHITESPACE}})


def _sequence(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _literal(text: str) -> str:
    return json.dumps(text) if text else ""


def _object(value: object, *location: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise WrongField("must be an object", *location)
    return value


def _required(fields: Mapping[str, object], name: str, *within: str) -> object:
    if fields.get(name) is None:
        raise WrongField("is missing", *within, name, code="missing_parameter")
    return fields[name]


def _refuse_others(fields: Mapping[str, object], *known: str, within: tuple[str, ...] = ()) -> None:
    for name in fields:
        if name not in known:
            raise WrongField("unknown parameter", *within, name, code="unknown_parameter")


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise WrongField("must be a string that is not empty")
    _check_size(value)
    return value


def _schema(value: object, *location: str) -> Grammar:
    if value is not True and not isinstance(value, Mapping):
        raise WrongField("must be a JSON schema, an object", *location)
    if is_deeper(value, MAX_DEPTH):
        raise WrongField(f"nested deeper than {MAX_DEPTH}", *location)
    text = orjson.dumps(value).decode()
    _check_size(text, *location)
    return Grammar(GrammarKind.JSON_SCHEMA, text)


def _check_size(text: str, *location: str) -> None:
    if len(text) > MAX_GRAMMAR_CHARACTERS:
        raise WrongField(f"at most {MAX_GRAMMAR_CHARACTERS} characters, not {len(text)}", *location)
