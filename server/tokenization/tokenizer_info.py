"""GET /tokenizer_info: what the served model's vocabulary is, and how conversations are written for it.

Special tokens and the template have the names that tokenizer_config.json gives them, for clients that read one.
"""

from __future__ import annotations

import orjson
from starlette.responses import Response

from server.state import ServerState


def tokenizer_info(state: ServerState) -> Response:
    """``eos_token_ids`` are those that end an answer: the vocabulary's and the model's own. What is absent is null."""
    ready, tokenizer = state.require_ready()
    info: dict[str, object] = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"))
    info |= tokenizer.special_tokens
    info |= {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "model_vocab_size": ready.vocab_size,
        "max_model_len": ready.max_model_len,
        "adds_bos": tokenizer.adds_bos,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_ids": ready.eos_token_ids,
        "chat_template": None if state.chat_template is None else state.chat_template.source,
    }
    return Response(orjson.dumps(info), media_type="application/json")
