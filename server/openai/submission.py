"""From a validated body to generations: model known, prompts tokenized, sizes checked.

The last door before the engine: what passes fits this model and this pool. Invariant: nothing is submitted here; a
generation starts when its stream is first read.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence

from engine.client import EngineError
from engine.messages import EngineReady, EngineRequest
from server.errors import bad_request, from_engine
from server.generation import Generation, GenerationGroup
from server.openai.protocol import GenerationBody
from server.state import ServerState
from server.text.errors import TextError
from server.text.tokenizer import Tokenizer

# Above this many characters a text is tokenized in a thread, so that other streams flow on.
INLINE_CHARACTERS = 4096


def new_id(prefix: str) -> str:
    """A fresh id for one API request."""
    return f"{prefix}-{uuid.uuid4().hex}"


async def encode(make_ids: Callable[[], list[int]], num_characters: int, param: str) -> list[int]:
    """The token ids of a text of ``num_characters``, made by ``make_ids``; ApiError 400 when there are none."""
    try:
        token_ids = make_ids() if num_characters <= INLINE_CHARACTERS else await asyncio.to_thread(make_ids)
    except TextError as error:
        raise bad_request(f"{param}: {error}", param) from None
    if not token_ids:
        raise bad_request(f"{param}: has no tokens", param)
    return token_ids


def check_vocabulary(token_ids: Sequence[int], ready: EngineReady, param: str) -> None:
    """ApiError 400 for an id that the model has no row for."""
    largest = max(token_ids, default=0)
    if largest >= ready.vocab_size:
        message = f"{param}: token id {largest} is outside the vocabulary of {ready.vocab_size} tokens"
        raise bad_request(message, param)


def choose_max_tokens(state: ServerState, num_prompt_tokens: int, wanted: int | None, default: int | None) -> int:
    """Most new tokens of one sequence.

    ``wanted`` is taken at its word: ApiError 400 when prompt and output could never fit together. Without it,
    ``default`` or, where that is None too, everything: as far as the context and the pool reach.
    """
    try:
        if wanted is None:
            room = max(state.client.max_new_tokens(num_prompt_tokens), 1)
            wanted = room if default is None else min(default, room)
        state.client.check_fits(num_prompt_tokens, wanted)
    except EngineError as error:
        raise from_engine(error) from None
    return wanted


def prepare(
    state: ServerState,
    tokenizer: Tokenizer,
    body: GenerationBody,
    request_id: str,
    prompts: Sequence[tuple[list[int], int]],
    stops: Sequence[str],
    arrived: float,
) -> GenerationGroup:
    """One generation for each (prompt token ids, max_tokens)."""
    return GenerationGroup(
        [
            Generation(
                state,
                tokenizer,
                EngineRequest(
                    request_id=f"{request_id}-{index}",
                    prompt_token_ids=prompt_token_ids,
                    sampling=body.sampling(max_tokens),
                ),
                stops,
                arrived,
            )
            for index, (prompt_token_ids, max_tokens) in enumerate(prompts)
        ]
    )
