"""POST /tokenize: the ids that a text, or a conversation, becomes.

Invariant: a completion of the text and one of its ids are the same request; likewise a chat and a completion of the ids
of its messages.
"""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response

from engine.messages import EngineReady
from server.errors import bad_request
from server.openai.body import parse_body
from server.openai.chat_body import ChatBody
from server.openai.chat_prompt import prompt_text, require_template
from server.state import ServerState
from server.text.errors import TextError
from server.text.tokenizer import Tokenizer
from server.tokenization.in_thread import in_thread_if_long
from server.tokenization.tokenize_body import TokenizeBody


async def tokenize(state: ServerState, request: Request) -> Response:
    """Ids, their number, and how the vocabulary spells them if that was asked for."""
    ready, tokenizer = state.require_ready()
    raw = await request.body()
    payload = await in_thread_if_long(len(raw), lambda: _answer(state, ready, tokenizer, raw))
    return Response(payload, media_type="application/json")


def _answer(state: ServerState, ready: EngineReady, tokenizer: Tokenizer, raw: bytes) -> bytes:
    body = parse_body(TokenizeBody, raw, ready.max_model_len)
    if body.model is not None:
        state.require_model(body.model)
    param = "messages" if body.prompt is None else "prompt"
    try:
        token_ids = _token_ids(state, tokenizer, body)
    except TextError as error:
        raise bad_request(f"{param}: {error}", param) from None
    spellings = [tokenizer.spelling(token_id) for token_id in token_ids] if body.return_token_strs else None
    answer = {
        "count": len(token_ids),
        "max_model_len": ready.max_model_len,
        "tokens": token_ids,
        "token_strs": spellings,
    }
    return orjson.dumps(answer)


def _token_ids(state: ServerState, tokenizer: Tokenizer, body: TokenizeBody) -> list[int]:
    if body.prompt is not None:
        return tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    chat = parse_body(ChatBody, orjson.dumps(body.chat_fields(state.served_model_name)))
    text = prompt_text(chat, require_template(state, chat), tokenizer)
    if body.add_special_tokens is None:
        return tokenizer.encode_chat(text)
    return tokenizer.encode(text, add_special_tokens=body.add_special_tokens)
