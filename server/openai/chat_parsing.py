"""ChatParsing: how the text of a chat's answers is read: for tool calls, for reasoning, or not at all; what it must be.

Chooses by what the server was told, what the model's chat template shows, and what the chat asks for. Knows formats by
name only. Invariant: tools are refused where nobody could tell a call from text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.sampling_params import Grammar
from server.errors import bad_request
from server.openai.body import WrongField
from server.openai.chat_body import ChatBody
from server.openai.chat_tools import NamedTool
from server.openai.structured_output import ToolSignature, grammar_of_tool_calls
from server.options import AUTO, NONE
from server.state import ServerState
from server.text.chat_template import ChatTemplate
from server.text.message_parser import MessageParser
from server.text.reasoning import REASONING_TAGS, ReasoningSplitter, ReasoningTags, detect_tags
from server.text.tokenizer import Tokenizer
from server.text.tool_calls.formats import (
    FORMATS,
    JSON_ARRAY,
    PLAIN_JSON,
    CallFrame,
    ToolCallFormat,
    detect_format,
)
from server.text.tool_calls.parser import ToolOffer


@dataclass(frozen=True, slots=True)
class ChatParsing:
    """``tags`` and ``format`` are None where nothing is to be found. ``names``: the tools that may be called.

    ``grammar`` is what the answer must be, and ``grammar_field`` the field of the body that says so.
    """

    tags: ReasoningTags | None
    format: ToolCallFormat | None
    names: tuple[str, ...] = ()
    is_single: bool = False
    grammar: Grammar | None = None
    grammar_field: str | None = None

    @property
    def is_needed(self) -> bool:
        return self.tags is not None or self.format is not None

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """The markers that are control tokens, and must become text for once."""
        markers: list[str] = [] if self.format is None else [*self.format.markers]
        if self.tags is not None:
            markers += (self.tags.open, self.tags.close)
        return frozenset(_special_ids(tokenizer, markers))

    def new_parser(self, *, is_open: bool) -> MessageParser:
        """The parser of one choice. ``is_open``: the prompt has opened the reasoning."""
        reasoning = None if self.tags is None else ReasoningSplitter(self.tags, is_open=is_open)
        calls = None
        if self.format is not None:
            offer = ToolOffer(names=self.names, make_id=self.format.make_id, is_single=self.is_single)
            calls = self.format.parser(offer)
        return MessageParser(reasoning, calls)


def choose_parsing(state: ServerState, body: ChatBody, template: ChatTemplate, tokenizer: Tokenizer) -> ChatParsing:
    """How the answers to ``body`` are read; ApiError 400 for tools whose calls could not be."""
    if body.must_call:
        return _require_call(state, body, template)
    if body.grammar is not None:  # all of the answer is what the client has asked for
        return ChatParsing(tags=None, format=None, grammar=body.grammar, grammar_field=body.grammar_field)
    names = tuple(tool.function.name for tool in body.offered_tools)
    return ChatParsing(
        tags=_choose_tags(state, template, tokenizer),
        format=_require_format(state, template) if names else None,
        names=names,
        is_single=body.parallel_tool_calls is False,
    )


def _require_call(state: ServerState, body: ChatBody, template: ChatTemplate) -> ChatParsing:
    """Calls and nothing else, in the model's own format where it can be made to write that."""
    is_told = state.tool_call_parser != AUTO
    found = _require_format(state, template) if is_told else detect_format(template.source)
    chosen = found if found is not None and found.frame is not None else PLAIN_JSON
    tools = body.required_tools
    is_single = isinstance(body.tool_choice, NamedTool) or body.parallel_tool_calls is False
    try:
        grammar = grammar_of_tool_calls(
            [ToolSignature(tool.function.name, tool.function.arguments_schema) for tool in tools],
            **_framed(chosen.frame or JSON_ARRAY, is_single=is_single),
            parallel=not is_single,
        )
    except WrongField as error:
        place, *rest = error.location
        at = f"tools[{(body.tools or []).index(tools[int(place)])}]" + "".join(f".{name}" for name in rest)
        raise bad_request(f"{at}: {error}", at, error.code) from None
    return ChatParsing(
        tags=None,
        format=chosen,
        names=tuple(tool.function.name for tool in tools),
        is_single=is_single,
        grammar=grammar,
        grammar_field="tools",
    )


def _framed(frame: CallFrame, *, is_single: bool) -> dict[str, str]:
    around_each = {"begin": frame.begin, "end": frame.end}
    if is_single:
        return around_each
    return {**around_each, "separator": frame.separator, "before": frame.before, "after": frame.after}


def _choose_tags(state: ServerState, template: ChatTemplate, tokenizer: Tokenizer) -> ReasoningTags | None:
    if state.reasoning_parser != AUTO:
        return REASONING_TAGS.get(state.reasoning_parser)
    if (tags := detect_tags(template.source)) is not None:
        return tags
    return next((one for one in REASONING_TAGS.values() if tokenizer.token_id(one.open) is not None), None)


def _require_format(state: ServerState, template: ChatTemplate) -> ToolCallFormat:
    if state.tool_call_parser == NONE:
        message = "tools: this server was started with --tool-call-parser none"
        raise bad_request(message, "tools", "unsupported_parameter")
    if state.tool_call_parser != AUTO:
        return FORMATS[state.tool_call_parser]
    found = detect_format(template.source)
    if found is None:
        message = (
            "tools: the model's chat template writes tool calls in a way that this server does not know; if it is one "
            f"of {', '.join(FORMATS)}, start the server with --tool-call-parser NAME"
        )
        raise bad_request(message, "tools", "unsupported_parameter")
    return found


def _special_ids(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterable[int]:
    ids = (tokenizer.token_id(text) for text in texts)
    return (token_id for token_id in ids if token_id is not None and tokenizer.is_special(token_id))
