"""POST /v1/completions, plain and streamed."""

from __future__ import annotations

import time
from functools import partial

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.disconnect import unless_disconnected
from server.generation import TextDelta, Usage
from server.openai.chunks import ChunkEnvelope, stream_frames
from server.openai.protocol import DEFAULT_COMPLETION_TOKENS, CompletionBody, parse_body
from server.openai.submission import check_vocabulary, choose_max_tokens, encode, new_id, prepare
from server.sse import event_stream
from server.state import ServerState


async def create_completion(state: ServerState, request: Request) -> Response:
    """One choice per prompt, in the order of the prompts."""
    arrived = time.monotonic()
    ready, tokenizer = state.require_ready()
    body = parse_body(CompletionBody, await request.body())
    state.require_model(body.model)
    check_vocabulary(body.stop_token_ids or [], ready, "stop_token_ids")
    prompts = []
    for prompt in body.prompt:
        if isinstance(prompt, str):
            token_ids = await encode(partial(tokenizer.encode, prompt), len(prompt), "prompt")
        else:
            token_ids = prompt
            check_vocabulary(token_ids, ready, "prompt")
        prompts.append(
            (token_ids, choose_max_tokens(state, len(token_ids), body.max_tokens, DEFAULT_COMPLETION_TOKENS))
        )
    completion_id = new_id("cmpl")
    group = prepare(state, tokenizer, body, completion_id, prompts, body.stop, arrived)
    fields = {
        "id": completion_id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": state.served_model_name,
    }
    if body.stream:
        chunks = CompletionChunks(ChunkEnvelope(fields, include_usage=body.include_usage))
        return await event_stream(request, stream_frames(group, chunks, include_usage=body.include_usage))
    choices = await unless_disconnected(request.receive, group.collect())
    answer = {
        **fields,
        "choices": [
            {
                "index": index,
                "text": choice.text,
                "logprobs": None,
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
            }
            for index, choice in enumerate(choices)
        ],
        "usage": group.usage.body(),
    }
    return Response(orjson.dumps(answer), media_type="application/json")


class CompletionChunks:
    """Chunks of a streamed completion; every one is a text_completion object."""

    def __init__(self, envelope: ChunkEnvelope) -> None:
        self._envelope = envelope

    def opening(self, index: int) -> bytes | None:
        return None

    def text(self, index: int, text: str) -> bytes:
        choices = b'[{"index":%d,"text":%b,"logprobs":null,"finish_reason":null}]' % (index, orjson.dumps(text))
        return self._envelope.wrap(choices)

    def final(self, index: int, last: TextDelta) -> bytes:
        choice = {
            "index": index,
            "text": "",
            "logprobs": None,
            "finish_reason": last.finish_reason,
            "stop_reason": last.stop_reason,
        }
        return self._envelope.wrap(orjson.dumps([choice]))

    def usage(self, usage: Usage) -> bytes:
        return self._envelope.usage(usage)
