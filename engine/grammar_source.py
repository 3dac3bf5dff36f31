"""From a `Grammar` to the text that llguidance compiles, and what is wrong with it in words for a user.

Knows grammars and no vocabulary. Invariants: a text never leaves its place in the source, whatever is in it; options
are ours alone, so that a mask has every token that the grammar permits (llguidance would else force the tokens of text
that is certain, by a tokenizer that the engine does not have), and keywords of a schema that would not be kept are
refused, not ignored.
"""

from __future__ import annotations

import json
import re
from typing import Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark
from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark, is_lark_syntax

from engine.sampling_params import JSON_WHITESPACE, Grammar, GrammarKind

_SCHEMA_OPTIONS: Final = {"whitespace_pattern": JSON_WHITESPACE, "lenient": False, "coerce_one_of": False}
_OPTIONS: Final = '\n%llguidance {"no_forcing": true}\n'  # behind the text, so that its line numbers are the user's
_ANY_OBJECT: Final = '{"type": "object"}'
_OWN_OPTIONS: Final = re.compile(r"^\s*%llguidance\b", re.MULTILINE)
_QUOTED_SOURCE: Final = re.compile(r"\n\s+\d+ \| ")
_PLACE: Final = re.compile(r"^at \d+\(\d+\): ")
_SCHEMA_ERROR: Final = re.compile(r"^(failed to compile JSON schema|failed to parse \"%json\"): ")
_DEAD_END: Final = "NoExtensionBias"  # llguidance's name for a place where no byte may follow
_MOST_MESSAGE_CHARACTERS: Final = 500
_MOST_LEXER_STATES: Final = 50_000  # of 1 to 2 kB, made while tokens are drawn
_MOST_ITEMS_IN_ROW: Final = 20_000  # 4 for each property that an object may have next


class GrammarError(ValueError):
    """A grammar that cannot be compiled, or grows too complex while it is followed; the message is for a user."""


def parser_limits() -> LLParserLimits:
    """Bounds on the work and the memory of one grammar."""
    return LLParserLimits(
        max_lexer_states=_MOST_LEXER_STATES, max_items_in_row=_MOST_ITEMS_IN_ROW, verbose_errors=False
    )


def source_of(grammar: Grammar) -> str:
    """The Lark text of ``grammar``, as llguidance reads it; raises GrammarError for what is no grammar on sight."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            start = f"%json {_schema(grammar.text)}"
        case GrammarKind.JSON_OBJECT:
            start = f"%json {_schema(_ANY_OBJECT)}"
        case GrammarKind.REGEX:
            start = f"/{regex_to_lark(grammar.text, 'dw')}/"
        case GrammarKind.CHOICE:
            start = " | ".join(map(json.dumps, json.loads(grammar.text)))
        case GrammarKind.LARK:
            return _lark(grammar.text) + _OPTIONS
    return f"start: {start}{_OPTIONS}"


def check(grammar: Grammar) -> None:
    """Raise GrammarError for a grammar that cannot be compiled, or begun, whatever the vocabulary."""
    start = LLMatcher(LLTokenizer("byte"), source_of(grammar), log_level=0, limits=parser_limits())
    if not start.is_error():
        start.compute_bitmask()
    if start.is_error():
        raise GrammarError(readable(start.get_error(), grammar.kind))


def readable(message: str, kind: GrammarKind) -> str:
    """What llguidance says of a grammar, without the source that it quotes."""
    if message.startswith("panic"):
        return "it cannot be compiled"
    if message.startswith(_DEAD_END):
        return "no output can follow it"
    text = _QUOTED_SOURCE.split(message, maxsplit=1)[0].removesuffix("<non-verbose/>").strip()
    if kind is not GrammarKind.LARK:
        text = _SCHEMA_ERROR.sub("", _PLACE.sub("", text))
    return text[:_MOST_MESSAGE_CHARACTERS]


def _lark(text: str) -> str:
    """A grammar in Lark, given in Lark or in the EBNF of GBNF files, with "::=" in its rules."""
    if _OWN_OPTIONS.search(text):
        raise GrammarError("%llguidance sets options of the server, not of a grammar")
    if "::=" not in text or is_lark_syntax(text):
        return text
    try:
        return _OWN_OPTIONS.sub("//", gbnf_to_lark(text))
    except (GbnfToLarkError, RecursionError) as error:
        raise GrammarError(str(error)[:_MOST_MESSAGE_CHARACTERS]) from None


def _schema(text: str) -> str:
    """A JSON schema as one JSON value, with our options in place of its own."""
    schema = json.loads(text)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise GrammarError("the schema permits nothing" if schema is False else "a schema is an object or true")
    _refuse_mixed_tuples(schema)
    return json.dumps({**schema, "x-guidance": _SCHEMA_OPTIONS})


def _refuse_mixed_tuples(schema: object) -> None:
    """llguidance takes an array with ``additionalItems`` for one of an older draft, and forgets ``prefixItems``."""
    unread = [schema]
    while unread:
        one = unread.pop()
        if isinstance(one, dict):
            if "additionalItems" in one and isinstance(one.get("prefixItems"), list):
                raise GrammarError("additionalItems beside prefixItems is not supported; say items instead")
            unread += one.values()
        elif isinstance(one, list):
            unread += one
