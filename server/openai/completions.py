"""POST /v1/completions, plain and streamed."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.errors import bad_request
from server.generation.generation import TextDelta
from server.generation.generation_group import Usage
from server.generation.prompt_reading import PromptReading
from server.http.disconnect import unless_disconnected
from server.http.request_id import identify
from server.http.sse import event_stream
from server.openai.body import parse_body
from server.openai.choices import ending
from server.openai.chunks import ChunkEnvelope, stream_frames
from server.openai.completion_body import DEFAULT_COMPLETION_TOKENS, CompletionBody
from server.openai.completion_logprobs import logprobs_body, prompt_logprobs_body
from server.openai.infill import InfillTokens, find_infill_tokens
from server.openai.submission import (
    Submission,
    check_num_samples,
    check_priority,
    check_text_fits,
    check_token_ids,
    check_vocabulary,
    choose_max_tokens,
    encode,
    prepare_grammar,
)
from server.state import ServerState
from server.text.tokenizer import Tokenizer


async def create_completion(state: ServerState, request: Request) -> Response:
    """``n`` choices per prompt, in the order of the prompts."""
    arrived = time.monotonic()
    request_id = identify(request, "cmpl")
    ready, tokenizer = state.require_ready()
    body = parse_body(CompletionBody, await request.body(), ready.max_model_len)
    adapter = state.require_model(body.model)
    check_priority(body, state)
    check_token_ids(body, ready)
    check_num_samples(body, ready, len(body.prompt))
    check_draws_something(body)
    infill = require_infill_tokens(body, tokenizer)
    prompts = []
    for prompt in body.prompt:
        if isinstance(prompt, str):
            text = prompt if infill is None else infill.prompt(prompt, body.suffix or "")
            check_text_fits(text, tokenizer, ready, "prompt")
            token_ids = await encode(partial(tokenizer.encode, text), len(text), "prompt")
        else:
            token_ids = prompt
            check_vocabulary(token_ids, ready, "prompt")
        max_tokens = choose_max_tokens(
            state, len(token_ids), body.max_tokens, DEFAULT_COMPLETION_TOKENS, rotates=body.rotates, prompt="prompt"
        )
        prompts.append((token_ids, max_tokens))
    await prepare_grammar(state, request.receive, body.grammar, body.grammar_field)
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
        adapter=adapter,
        grammar=body.grammar,
    ).prepare(prompts)
    fields = {
        "id": request_id.own,
        "object": "text_completion",
        "created": int(time.time()),
        "model": body.model,
    }
    if body.stream:
        usage_so_far = (lambda: group.usage) if body.continuous_usage else None
        envelope = ChunkEnvelope(fields, include_usage=body.include_usage, usage_so_far=usage_so_far)
        chunks = CompletionChunks(envelope, body)
        return await event_stream(request, stream_frames(group, chunks, include_usage=body.include_usage))
    answers = await unless_disconnected(request.receive, group.collect())
    choices = [
        _choice(body, index, answer, prompt)
        for index, (answer, prompt) in enumerate(zip(answers, group.prompts, strict=True))
    ]
    answer = {**fields, "choices": choices, "usage": group.usage.body()}
    return Response(orjson.dumps(answer), media_type="application/json")


def check_draws_something(body: CompletionBody) -> None:
    """ApiError 400 for a request to which the answer would be empty."""
    if body.max_tokens == 0 and not body.may_draw_nothing:
        raise bad_request("max_tokens: 0 is allowed only with echo or prompt_logprobs", "max_tokens")


def require_infill_tokens(body: CompletionBody, tokenizer: Tokenizer) -> InfillTokens | None:
    """Those of the model for a body with a suffix; ApiError 400 where it cannot be honoured."""
    if not body.suffix:
        return None
    tokens = find_infill_tokens(tokenizer)
    if tokens is None:
        message = "suffix: this model has no tokens for filling in the middle"
        raise bad_request(message, "suffix", "unsupported_parameter")
    if body.echoes or any(not isinstance(prompt, str) for prompt in body.prompt):
        raise bad_request("suffix: goes with prompts that are text, and not with echo", "suffix")
    return tokens


def _choice(body: CompletionBody, index: int, answer: TextDelta, prompt: PromptReading) -> dict[str, object]:
    choice = {
        "index": index,
        "text": answer.text,
        "logprobs": None if body.logprobs is None else logprobs_body(answer.logprobs),
        **ending(answer, include_ledger=body.include_ledger is True),
    }
    if body.prompt_logprobs is not None:
        choice["prompt_logprobs"] = prompt_logprobs_body(prompt, body.prompt_logprobs)
    return choice


class CompletionChunks:
    """Chunks of a streamed completion; every one is a text_completion object."""

    def __init__(self, envelope: ChunkEnvelope, body: CompletionBody) -> None:
        self._envelope = envelope
        self._include_ledger = body.include_ledger is True
        self._make_frames: dict[int, Callable[[str], bytes]] = {}

    def opening(self, index: int) -> bytes | None:
        return None

    def more(self, index: int, delta: TextDelta) -> bytes | None:
        if delta.logprobs:
            logprobs = orjson.dumps(logprobs_body(delta.logprobs))
            choices = b'[{"index":%d,"text":%b,"logprobs":%b,"finish_reason":null}]'
            return self._envelope.wrap(choices % (index, orjson.dumps(delta.text), logprobs))
        if not delta.text:
            return None
        if (make_frame := self._make_frames.get(index)) is None:
            make_frame = self._envelope.around(
                b'[{"index":%d,"text":' % index, b',"logprobs":null,"finish_reason":null}]'
            )
            self._make_frames[index] = make_frame
        return make_frame(delta.text)

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
