"""POST /v1/embeddings: the vectors of texts, from the hidden states of the model that generates.

Invariants: everything is validated before the first input reaches the engine; no more inputs of one request are in the
engine at once than can run there, so that a long list does not fill the queue; when the client leaves, all end.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

import orjson
from starlette.requests import Request
from starlette.responses import Response

from engine.client import EngineError
from engine.messages import EngineReady, EngineRequest
from engine.sampling_params import SamplingParams
from scheduler.request import FinishReason
from server.errors import bad_request, from_engine
from server.generation.embedding import embed
from server.generation.generation_group import Usage
from server.http.disconnect import unless_disconnected
from server.http.request_id import identify
from server.observation.request_record import PromptProgress
from server.openai.body import parse_body
from server.openai.embedding_body import EmbeddingBody
from server.openai.embedding_vector import EmbeddingVector
from server.openai.submission import check_text_fits, check_vocabulary, encode
from server.request_registry import InFlightRequest
from server.state import ServerState
from server.text.tokenizer import Tokenizer


async def create_embeddings(state: ServerState, request: Request) -> Response:
    """One vector of unit length for each input, in their order."""
    arrived = time.monotonic()
    request_id = identify(request, "embd")
    ready, tokenizer = state.require_ready()
    body = parse_body(EmbeddingBody, await request.body(), ready.max_model_len)
    adapter = state.require_model(body.model)
    _check_dimensions(body, ready)
    prompts = await _prompts(state, body, ready, tokenizer)
    authorization = request.headers.get("authorization")
    salt = state.api_keys.salt(authorization, body.cache_salt)
    tenant = state.api_keys.tenant(authorization)
    requests = [
        EngineRequest(
            request_id=f"{request_id.own}-{index}-0",
            prompt_token_ids=token_ids,
            sampling=SamplingParams(max_tokens=0),
            cache_salt=salt,
            adapter=adapter,
            tenant=tenant,
            timeout=body.timeout,
            pooling=body.chosen_pooling,
        )
        for index, token_ids in enumerate(prompts)
    ]
    in_flight = InFlightRequest(
        request_id=request_id,
        tenant=tenant,
        arrived=arrived,
        sequence_ids=tuple(one.request_id for one in requests),
    )
    if (record := in_flight.record) is not None:
        record.model, record.tenant = body.model, tenant
        record.progress = PromptProgress(Usage(sum(map(len, prompts)), 0, 0))
    with state.requests.holding(in_flight):
        vectors = await unless_disconnected(request.receive, _embed_all(state, ready, requests, in_flight))
    shown = [EmbeddingVector(vector, body.dimensions) for vector in vectors]
    num_tokens = sum(map(len, prompts))
    answer = {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": vector.base64() if body.encoding_format == "base64" else vector.floats(),
            }
            for index, vector in enumerate(shown)
        ],
        "model": body.model,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
    return Response(orjson.dumps(answer), media_type="application/json")


def _check_dimensions(body: EmbeddingBody, ready: EngineReady) -> None:
    if body.dimensions is not None and body.dimensions > ready.hidden_size:
        message = f"dimensions: must be at most {ready.hidden_size}, the size of this model's vectors"
        raise bad_request(f"{message}, not {body.dimensions}", "dimensions")


async def _prompts(
    state: ServerState, body: EmbeddingBody, ready: EngineReady, tokenizer: Tokenizer
) -> list[list[int]]:
    """The token ids of each input; texts get what a completion's prompt gets (BOS for most models)."""
    prompts = []
    for prompt in body.input:
        if isinstance(prompt, str):
            check_text_fits(prompt, tokenizer, ready, "input")
            token_ids = await encode(partial(tokenizer.encode, prompt), len(prompt), "input")
        else:
            token_ids = prompt
            check_vocabulary(token_ids, ready, "input")
        try:
            state.client.check_fits(len(token_ids), 0)
        except EngineError as error:
            raise from_engine(error, "input") from None
        prompts.append(token_ids)
    return prompts


async def _embed_all(
    state: ServerState, ready: EngineReady, requests: list[EngineRequest], in_flight: InFlightRequest
) -> list[bytes]:
    """The vectors, in order; the first failure ends all."""
    running = asyncio.Semaphore(ready.max_num_seqs)

    async def one(number: int, request: EngineRequest) -> bytes:
        async with running:
            in_flight.begin(number)
            vector = await embed(state, request, in_flight.arrived)
            in_flight.end(number, FinishReason.LENGTH)
            return vector

    tasks = [asyncio.create_task(one(*numbered)) for numbered in enumerate(requests)]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
