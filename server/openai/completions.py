"""POST /v1/completions, plain and streamed."""

from __future__ import annotations

import time
from functools import partial

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.disconnect import unless_disconnected
from server.generation import TextDelta
from server.generation_group import Usage
from server.openai.body import parse_body
from server.openai.choices import ending
from server.openai.chunks import ChunkEnvelope, stream_frames
from server.openai.completion_body import DEFAULT_COMPLETION_TOKENS, CompletionBody
from server.openai.submission import (
    Submission,
    check_num_samples,
    check_priority,
    check_text_fits,
    check_vocabulary,
    choose_max_tokens,
    encode,
)
from server.request_id import identify
from server.sse import event_stream
from server.state import ServerState


async def create_completion(state: ServerState, request: Request) -> Response:
    """``n`` choices per prompt, in the order of the prompts."""
    arrived = time.monotonic()
    request_id = identify(request, "cmpl")
    ready, tokenizer = state.require_ready()
    body = parse_body(CompletionBody, await request.body(), ready.max_model_len)
    state.require_model(body.model)
    check_priority(body, state)
    check_vocabulary(body.stop_token_ids or [], ready, "stop_token_ids")
    check_num_samples(body, ready, len(body.prompt))
    prompts = []
    for prompt in body.prompt:
        if isinstance(prompt, str):
            check_text_fits(prompt, tokenizer, ready, "prompt")
            token_ids = await encode(partial(tokenizer.encode, prompt), len(prompt), "prompt")
        else:
            token_ids = prompt
            check_vocabulary(token_ids, ready, "prompt")
        max_tokens = choose_max_tokens(
            state, len(token_ids), body.max_tokens, DEFAULT_COMPLETION_TOKENS, rotates=body.rotates
        )
        prompts.append((token_ids, max_tokens))
    authorization = request.headers.get("authorization")
    group = Submission(
        state=state,
        tokenizer=tokenizer,
        body=body,
        request_id=request_id,
        stops=body.stop,
        salt=state.api_keys.salt(authorization, body.cache_salt),
        tenant=state.api_keys.tenant(authorization),
        arrived=arrived,
    ).prepare(prompts)
    fields = {
        "id": request_id.own,
        "object": "text_completion",
        "created": int(time.time()),
        "model": state.served_model_name,
    }
    if body.stream:
        chunks = CompletionChunks(
            ChunkEnvelope(fields, include_usage=body.include_usage), include_ledger=body.include_ledger is True
        )
        return await event_stream(request, stream_frames(group, chunks, include_usage=body.include_usage))
    choices = await unless_disconnected(request.receive, group.collect())
    answer = {
        **fields,
        "choices": [
            {
                "index": index,
                "text": choice.text,
                "logprobs": None,
                **ending(choice, include_ledger=body.include_ledger is True),
            }
            for index, choice in enumerate(choices)
        ],
        "usage": group.usage.body(),
    }
    return Response(orjson.dumps(answer), media_type="application/json")


class CompletionChunks:
    """Chunks of a streamed completion; every one is a text_completion object."""

    def __init__(self, envelope: ChunkEnvelope, *, include_ledger: bool) -> None:
        self._envelope = envelope
        self._include_ledger = include_ledger

    def opening(self, index: int) -> bytes | None:
        return None

    def more(self, index: int, delta: TextDelta) -> bytes | None:
        if not delta.text:
            return None
        choices = b'[{"index":%d,"text":%b,"logprobs":null,"finish_reason":null}]' % (index, orjson.dumps(delta.text))
        return self._envelope.wrap(choices)

    def final(self, index: int, delta: TextDelta) -> bytes | None:
        if delta.finish_reason is None:
            return None
        choice = {
            "index": index,
            "text": "",
            "logprobs": None,
            **ending(delta, include_ledger=self._include_ledger),
        }
        return self._envelope.wrap(orjson.dumps([choice]))

    def usage(self, usage: Usage) -> bytes:
        return self._envelope.usage(usage)
