"""ChatSession: a conversation on its way to the assistant's next message, whatever form the answer takes.

Between the endpoints that chat (their bodies become a `ChatBody`, their events are made of `ChatDelta`) and the engine.
Knows no JSON. Invariants: everything is validated before a session exists; nothing runs until it is streamed or
collected; the deltas of a choice, joined, are its answer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.requests import Request

from engine.messages import EngineReady, Ledger
from scheduler.request import FinishReason
from server.errors import bad_request
from server.generation import TextDelta
from server.generation_group import GenerationGroup, Usage
from server.openai.chat_body import ChatBody
from server.openai.submission import (
    Submission,
    check_num_samples,
    check_priority,
    check_text_fits,
    check_token_ids,
    choose_max_tokens,
    encode,
)
from server.request_id import RequestId
from server.state import ServerState
from server.text.chat_template import ChatTemplate
from server.text.tokenizer import Tokenizer
from server.text.tool_calls.call import ToolCall, ToolCallDelta

TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class ChatEnding:
    """How a choice ended. ``finish_reason``: "stop", "length" or "tool_calls"; the rest as in `TextDelta`."""

    finish_reason: str
    stop_reason: str | int | None = None
    ledger: Ledger | None = None


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """More of one choice, perhaps nothing; ``last`` only on its last. ``queue_position`` comes alone, before all else.

    ``content`` and ``reasoning`` are texts to append.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    last: ChatEnding | None = None
    queue_position: int | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.content or self.reasoning or self.tool_calls)


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """One choice. ``content`` is None for a message that only calls tools, ``reasoning`` for one without any."""

    content: str | None
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    last: ChatEnding

    @property
    def finish_reason(self) -> str:
        return self.last.finish_reason


class ChatSession:
    """``n`` choices, each an assistant's next message. ``created`` is in seconds since 1970."""

    def __init__(self, request_id: RequestId, group: GenerationGroup) -> None:
        self.request_id = request_id.own
        self.created = int(time.time())
        self._group = group

    @property
    def usage(self) -> Usage:
        """Counts so far."""
        return self._group.usage

    async def stream(self) -> AsyncGenerator[tuple[int, ChatDelta]]:
        """(index of the choice, delta) as they come; the first failure ends all. Close it to abort what still runs."""
        async with contextlib.aclosing(self._group.stream()) as deltas:
            async for index, delta in deltas:
                yield index, _chat_delta(delta)

    async def collect(self) -> list[ChatAnswer]:
        """The whole choices."""
        return [
            ChatAnswer(answer.text, None, (), _ending(answer, answer.finish_reason))
            for answer in await self._group.collect()
            if answer.finish_reason is not None
        ]


def _chat_delta(delta: TextDelta) -> ChatDelta:
    last = None if delta.finish_reason is None else _ending(delta, delta.finish_reason)
    return ChatDelta(delta.text, last=last, queue_position=delta.queue_position)


def _ending(last: TextDelta, finish_reason: FinishReason | None) -> ChatEnding:
    return ChatEnding(str(finish_reason), last.stop_reason, last.ledger)


async def open_chat(state: ServerState, request: Request, body: ChatBody, request_id: RequestId) -> ChatSession:
    """The session that answers ``body``; ApiError for what cannot be served.

    ``request`` gives the API key. The caller has identified it before reading its body, so that refusals show its id.
    """
    arrived = time.monotonic()
    ready, tokenizer = state.require_ready()
    state.require_model(body.model)
    check_priority(body, state)
    template = require_template(state)
    check_token_ids(body, ready)
    check_num_samples(body, ready, 1)
    num_characters = sum(len(message.content) for message in body.messages)
    token_ids = await encode(lambda: _prompt_ids(body, template, tokenizer, ready), num_characters, "messages")
    max_tokens = choose_max_tokens(state, len(token_ids), body.token_limit, None, rotates=body.rotates)
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
    ).prepare([(token_ids, max_tokens)])
    return ChatSession(request_id, group)


def require_template(state: ServerState) -> ChatTemplate:
    """ApiError 400 for a model without one."""
    if state.chat_template is None:
        message = (
            f"the model {state.served_model_name!r} has no chat template: start the server with --chat-template FILE "
            "(or --chat-template plain-transcript for a base model), or use /v1/completions"
        )
        raise bad_request(message, code="chat_template_missing")
    return state.chat_template


def _prompt_ids(body: ChatBody, template: ChatTemplate, tokenizer: Tokenizer, ready: EngineReady) -> list[int]:
    text = prompt_text(body, template, tokenizer)
    check_text_fits(text, tokenizer, ready, "messages")  # not before: a template may cut what it is given
    return tokenizer.encode_chat(text)


def prompt_text(body: ChatBody, template: ChatTemplate, tokenizer: Tokenizer) -> str:
    """The conversation as the model reads it. TextError where the template refuses it."""
    messages = [message.template_fields() for message in body.messages]
    if "developer" not in template.source:
        # The newer name of the system role, which most templates have never heard of.
        messages = [m | {"role": "system"} if m["role"] == "developer" else m for m in messages]
    return template.render(messages, special_tokens=tokenizer.special_tokens)
