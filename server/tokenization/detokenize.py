"""POST /detokenize: the text that token ids stand for."""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response

from engine.messages import EngineReady
from server.openai.body import parse_body
from server.openai.submission import check_vocabulary
from server.state import ServerState
from server.text.tokenizer import Tokenizer
from server.tokenization.in_thread import in_thread_if_long
from server.tokenization.tokenize_body import DetokenizeBody


async def detokenize(state: ServerState, request: Request) -> Response:
    """The text of the ids as a whole; bytes that are no UTF-8 show as U+FFFD."""
    ready, tokenizer = state.require_ready()
    raw = await request.body()
    payload = await in_thread_if_long(len(raw), lambda: _answer(state, ready, tokenizer, raw))
    return Response(payload, media_type="application/json")


def _answer(state: ServerState, ready: EngineReady, tokenizer: Tokenizer, raw: bytes) -> bytes:
    body = parse_body(DetokenizeBody, raw, ready.max_model_len)
    if body.model is not None:
        state.require_model(body.model)
    check_vocabulary(body.tokens, ready, "tokens")
    text = tokenizer.decode(body.tokens, skip_special_tokens=body.skip_special_tokens is True)
    return orjson.dumps({"prompt": text})
