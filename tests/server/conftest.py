"""An app over an engine that follows a script: real tokenizer, real arithmetic of what fits, no model.

The engine is in `scripted_engine`, what it says of itself in `engine_reports`, requests and answers in `api`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from fastapi import FastAPI

from engine.sampling_params import TokenLogprobs
from server.app import create_app
from server.state import ServerState
from server.text.chat_template import ChatTemplate
from server.text.token_spelling import BYTE_LEVEL_ALPHABET
from server.text.tokenizer import Tokenizer

pytest.register_assert_rewrite("tests.server.api", "tests.server.scripted_engine")

from tests.server.api import MODEL, Api  # noqa: E402
from tests.server.engine_reports import END, rate  # noqa: E402
from tests.server.scripted_engine import ScriptedEngine  # noqa: E402


@pytest.fixture(scope="session", name="rate")
def rate_fixture() -> Callable[[int, int], TokenLogprobs]:
    return rate


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    """One token for each byte, and one control token that ends a text."""
    tokens = [*BYTE_LEVEL_ALPHABET, "<|end|>"]
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * 256 + [3],
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.eos_token_id": END,
        }
    )


@pytest.fixture
def engine(byte_tokenizer: Tokenizer) -> ScriptedEngine:
    return ScriptedEngine(byte_tokenizer)


@pytest.fixture
def state(engine: ScriptedEngine, byte_tokenizer: Tokenizer) -> ServerState:
    return ServerState(
        engine,
        MODEL,
        tokenizer=byte_tokenizer,
        chat_template=ChatTemplate(
            "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]", stops=("[user]",)
        ),
        max_request_bytes=20_000,
    )


@pytest.fixture
def app(state: ServerState) -> FastAPI:
    return create_app(state)


@pytest.fixture
async def api(app: FastAPI, state: ServerState) -> AsyncIterator[Api]:
    api = Api(app, state)
    yield api
    await api.http.aclose()
    assert api.checked.problems == []
