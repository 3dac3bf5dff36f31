"""ChatSession: a conversation on its way to the assistant's next message, whatever form the answer takes.

Between the endpoints that chat (their bodies become a `ChatBody`, their events are made of `ChatDelta`) and the engine.
Knows no JSON. Invariants: everything is validated before a session exists; nothing runs until it is streamed or
collected; the deltas of a choice, joined, are its answer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace

import msgspec
from starlette.requests import Request

from engine.messages import Ledger
from scheduler.request import FinishReason
from server.generation.generation import TextDelta
from server.generation.generation_group import GenerationGroup, Usage
from server.generation.token_logprob import TokenLogprob
from server.http.request_id import RequestId
from server.openai.chat_body import ChatBody
from server.openai.chat_parsing import choose_parsing
from server.openai.chat_prompt import opens_reasoning, prompt_text, require_template
from server.openai.content_logprobs import ContentLogprobs
from server.openai.submission import (
    Submission,
    check_num_samples,
    check_priority,
    check_text_fits,
    check_token_ids,
    choose_max_tokens,
    encode,
    prepare_grammar,
)
from server.state import ServerState
from server.text.message_parser import MessageParser
from server.text.tool_calls.call import ToolCall, ToolCallDelta

TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class ChatEnding:
    """How a choice ended. ``finish_reason``: "stop", "length" or "tool_calls"; the rest as in `TextDelta`."""

    finish_reason: str
    stop_reason: str | int | None = None
    ledger: Ledger | None = None


class ChatDelta(msgspec.Struct, frozen=True, gc=False):
    """More of one choice, perhaps nothing; ``last`` only on its last. ``queue_position`` comes alone, before all else.

    ``content`` and ``reasoning`` are texts to append. ``logprobs`` are those of tokens of the content, where the
    request asked for them. A struct, for the reason that a `TextDelta` is one.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    last: ChatEnding | None = None
    queue_position: int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def is_content(self) -> bool:
        """Whether it brings text of the content and nothing beside it, as nearly all do."""
        return self.content != "" and not (self.reasoning or self.tool_calls or self.logprobs)


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """One choice. ``content`` is None for a message that only calls tools, ``reasoning`` for one without any."""

    content: str | None
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    last: ChatEnding
    logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def finish_reason(self) -> str:
        return self.last.finish_reason


class ChatSession:
    """``n`` choices, each an assistant's next message. ``created`` is in seconds since 1970."""

    def __init__(self, request_id: RequestId, group: GenerationGroup, choices: list[_Choice] | None) -> None:
        self.request_id = request_id.own
        self.created = int(time.time())
        self._group = group
        self._choices = choices  # None: all text is content

    @property
    def usage(self) -> Usage:
        """Counts so far."""
        usage = self._group.usage
        if self._choices is None or not any(choice.tells_reasoning for choice in self._choices):
            return usage
        return replace(usage, reasoning_tokens=sum(choice.num_reasoning_tokens for choice in self._choices))

    async def stream(self) -> AsyncGenerator[tuple[int, ChatDelta]]:
        """(index of the choice, delta) as they come; the first failure ends all. Close it to abort what still runs."""
        async with contextlib.aclosing(self._group.stream()) as deltas:
            async for index, delta in deltas:
                if self._choices is None or delta.queue_position is not None:
                    yield index, _content_delta(delta)
                else:
                    yield index, self._choices[index].read(delta, self._group.num_completion_tokens(index))

    async def collect(self) -> list[ChatAnswer]:
        """The whole choices."""
        drafts: dict[int, _Draft] = {}
        async with contextlib.aclosing(self.stream()) as deltas:
            async for index, delta in deltas:
                drafts.setdefault(index, _Draft()).add(delta)
        return [drafts[index].answer() for index in sorted(drafts)]


class _Choice:
    """One choice on its way from text to a message. With ``only_calls`` all text is calls, or the start of one."""

    def __init__(self, parser: MessageParser, *, tells_reasoning: bool, only_calls: bool) -> None:
        self.tells_reasoning = tells_reasoning
        self.num_reasoning_tokens = 0
        self._parser = parser
        self._only_calls = only_calls
        self._logprobs = ContentLogprobs()

    def read(self, delta: TextDelta, num_tokens: int) -> ChatDelta:
        """The part of the message that ``delta`` brings; ``num_tokens`` are those of the choice so far."""
        parser = self._parser
        was_reasoning = parser.is_reasoning
        message = parser.feed(delta.text)
        if was_reasoning or parser.is_reasoning:
            self.num_reasoning_tokens = num_tokens
        content, reasoning, calls, spans = message.content, message.reasoning, message.tool_calls, message.spans
        last = None
        if delta.finish_reason is not None:
            rest = parser.finish(is_cut=delta.finish_reason is FinishReason.LENGTH)
            content, reasoning = content + rest.content, reasoning + rest.reasoning
            calls, spans = calls + rest.tool_calls, spans + rest.spans
            has_called = parser.num_calls > 0 and delta.finish_reason is FinishReason.STOP
            last = ChatEnding(TOOL_CALLS if has_called else delta.finish_reason, delta.stop_reason, delta.ledger)
        if self._only_calls:
            content, spans = "", ()
        return ChatDelta(content, reasoning, calls, last, logprobs=self._logprobs.feed(delta.logprobs, spans))


def _content_delta(delta: TextDelta) -> ChatDelta:
    last = None
    if delta.finish_reason is not None:
        last = ChatEnding(delta.finish_reason, delta.stop_reason, delta.ledger)
    return ChatDelta(delta.text, "", (), last, delta.queue_position, delta.logprobs)


@dataclass(slots=True)
class _Draft:
    """A choice as far as it has come."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[tuple[str, str, list[str]]] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    last: ChatEnding | None = None

    def add(self, delta: ChatDelta) -> None:
        self.content.append(delta.content)
        self.reasoning.append(delta.reasoning)
        self.logprobs += delta.logprobs
        self.last = delta.last
        for call in delta.tool_calls:
            if call.id is not None and call.name is not None:
                self.calls.append((call.id, call.name, []))
            self.calls[call.index][2].append(call.arguments)

    def answer(self) -> ChatAnswer:
        if self.last is None:
            raise AssertionError("a stream ended without its last delta")
        calls = tuple(ToolCall(id_, name, "".join(arguments)) for id_, name, arguments in self.calls)
        content, reasoning = "".join(self.content), "".join(self.reasoning)
        shown = None if calls and not content else content
        return ChatAnswer(shown, reasoning or None, calls, self.last, tuple(self.logprobs))


async def open_chat(state: ServerState, request: Request, body: ChatBody, request_id: RequestId) -> ChatSession:
    """The session that answers ``body``; ApiError for what cannot be served.

    ``request`` gives the API key. The caller has identified it before reading its body, so that refusals show its id.
    """
    arrived = time.monotonic()
    ready, tokenizer = state.require_ready()
    adapter = state.require_model(body.model)
    check_priority(body, state)
    template = require_template(state, body)
    parsing = choose_parsing(state, body, template, tokenizer)
    check_token_ids(body, ready)
    check_num_samples(body, ready, 1)
    text = ""

    def prompt_ids() -> list[int]:
        nonlocal text
        text = prompt_text(body, template, tokenizer)
        check_text_fits(text, tokenizer, ready, "messages")  # not before: a template may cut what it is given
        return tokenizer.encode_chat(text)

    token_ids = await encode(prompt_ids, body.num_characters, "messages")
    max_tokens = choose_max_tokens(
        state, len(token_ids), body.token_limit, None, rotates=body.rotates, prompt="messages"
    )
    await prepare_grammar(state, request.receive, parsing.grammar, parsing.grammar_field)
    authorization = request.headers.get("authorization")
    group = Submission(
        state=state,
        tokenizer=tokenizer,
        body=body,
        request_id=request_id,
        stops=body.stop + template.stops,
        salt=state.api_keys.salt(authorization, body.cache_salt),
        tenant=state.api_keys.tenant(authorization),
        arrived=arrived,
        adapter=adapter,
        shown_token_ids=parsing.shown_token_ids(tokenizer),
        grammar=parsing.grammar,
    ).prepare([(token_ids, max_tokens)])
    choices = None
    if parsing.is_needed:
        is_open = parsing.tags is not None and opens_reasoning(body, text, parsing.tags)
        tells_reasoning = parsing.tags is not None
        parsers = [parsing.new_parser(is_open=is_open) for _ in range(body.num_choices)]
        choices = [_Choice(parser, tells_reasoning=tells_reasoning, only_calls=body.must_call) for parser in parsers]
    return ChatSession(request_id, group, choices)
