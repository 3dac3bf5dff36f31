"""From a validated body to generations: model known, prompts tokenized, sizes checked.

The last door before the engine: what passes fits this model and this pool. Invariant: nothing is submitted here; a
generation starts when its stream is first read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import msgspec
from starlette.types import Receive

from engine.client import EngineClient, EngineError
from engine.messages import EngineReady, EngineRequest, RequestDelta
from engine.sampling_params import Grammar, SamplingParams
from server.errors import bad_request, context_exceeded, from_engine
from server.generation.generation import Generation
from server.generation.generation_group import GenerationGroup, PromptSamples
from server.generation.prompt_reading import PromptReading
from server.http.disconnect import unless_disconnected
from server.http.request_id import RequestId
from server.openai.generation_body import GenerationBody
from server.request_registry import InFlightRequest
from server.state import ServerState
from server.text.errors import TextError
from server.text.length_bound import text_bytes
from server.text.tokenizer import Tokenizer

# Above this many characters a text is tokenized in a thread, so that other streams flow on.
INLINE_CHARACTERS = 4096
MAX_SEQUENCES = 1024  # of one API request: prompts times samples
PRIORITY_POLICY = "priority"


async def encode(make_ids: Callable[[], list[int]], num_characters: int, param: str) -> list[int]:
    """The token ids of a text of ``num_characters``, made by ``make_ids``; ApiError 400 when there are none."""
    try:
        token_ids = make_ids() if num_characters <= INLINE_CHARACTERS else await asyncio.to_thread(make_ids)
    except TextError as error:
        raise bad_request(f"{param}: {error}", param) from None
    if not token_ids:
        raise bad_request(f"{param}: has no tokens", param)
    return token_ids


def check_text_fits(text: str, tokenizer: Tokenizer, ready: EngineReady, param: str) -> None:
    """ApiError 400 for a text that is too long whatever its tokens are: it is not worth the time to tokenize it."""
    longest, context = tokenizer.longest_token_bytes, ready.max_model_len
    if longest is not None and len(text) > context and (size := text_bytes(text)) > context * longest:
        what = f"a text of {size} bytes is longer than it can hold, at up to {longest} bytes a token"
        raise context_exceeded(param, context, what)


def check_vocabulary(token_ids: Sequence[int], ready: EngineReady, param: str) -> None:
    """ApiError 400 for an id that the model has no row for."""
    largest = max(token_ids, default=0)
    if largest >= ready.vocab_size:
        message = f"{param}: token id {largest} is outside the vocabulary of {ready.vocab_size} tokens"
        raise bad_request(message, param)


def check_token_ids(body: GenerationBody, ready: EngineReady) -> None:
    """ApiError 400 for an id among the sampling parameters that the model has no row for."""
    check_vocabulary(body.stop_token_ids or [], ready, "stop_token_ids")
    check_vocabulary(list(body.logit_bias), ready, "logit_bias")


def check_priority(body: GenerationBody, state: ServerState) -> None:
    """ApiError 400 for a priority that the scheduling policy would not look at."""
    if body.priority and state.scheduling_policy != PRIORITY_POLICY:
        message = (
            f"priority: {body.priority} has no effect under --scheduling-policy {state.scheduling_policy}; the server "
            f"must be started with --scheduling-policy {PRIORITY_POLICY}"
        )
        raise bad_request(message, "priority", "unsupported_parameter")


def check_num_samples(body: GenerationBody, ready: EngineReady, num_prompts: int) -> None:
    """ApiError 400 for more samples of a prompt than can run at once, or more sequences than a request may have."""
    param = "best_of" if body.num_samples > body.num_choices else "n"
    if body.num_samples > ready.max_num_seqs:
        message = (
            f"{param}: {body.num_samples} samples of one prompt, but at most {ready.max_num_seqs} sequences run at "
            "once here (--max-num-seqs)"
        )
        raise bad_request(message, param)
    if num_prompts * body.num_samples > MAX_SEQUENCES:
        message = (
            f"{param}: {num_prompts} prompts with {body.num_samples} samples each make "
            f"{num_prompts * body.num_samples} sequences; a request has at most {MAX_SEQUENCES}"
        )
        raise bad_request(message, param)


def choose_max_tokens(
    state: ServerState, num_prompt_tokens: int, wanted: int | None, default: int | None, *, rotates: bool, prompt: str
) -> int:
    """Most new tokens of one sequence, whose field ``prompt`` has its prompt.

    ``wanted`` is taken at its word: ApiError 400 when prompt and output could never fit together. Without it,
    ``default`` or, where that is None too, everything: as far as the context and the pool reach.
    """
    try:
        if wanted is None:
            room = max(state.client.max_new_tokens(num_prompt_tokens), 1)
            wanted = room if default is None else default if rotates else min(default, room)
        state.client.check_fits(num_prompt_tokens, wanted, rotates=rotates)
    except EngineError as error:
        raise from_engine(error, prompt) from None
    return wanted


async def prepare_grammar(state: ServerState, receive: Receive, grammar: Grammar | None, param: str | None) -> None:
    """Make sure that the engine can follow ``grammar``; ApiError 400, naming ``param``, where it does not compile.

    ClientDisconnected where the client leaves before that is known: grammars behind it need not wait.
    """
    if grammar is None:
        return
    problem = None
    if not state.grammars.knows(grammar):
        problem = await unless_disconnected(receive, state.grammars.problem(grammar))
    if problem is not None:
        raise bad_request(f"{param}: {problem}" if param else problem, param, "invalid_grammar")
    _, tokenizer = state.require_ready()
    await state.client.learn_tokens(tokenizer.text_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What all sequences of one API request share. ``salt`` is the request's own and its API key's, together.

    ``grammar`` is what outputs must be words of, as `prepare_grammar` has found it fit. It says itself when they end:
    stop strings and stop tokens may lie inside, and are not looked for. ``tenant`` is whose share of the server it
    counts towards; ``arrived`` is on the clock of ``time.monotonic``. ``adapter`` is the name of the one that they use,
    if any. ``shown_token_ids`` become text though they are special.
    """

    state: ServerState
    tokenizer: Tokenizer
    body: GenerationBody
    request_id: RequestId
    stops: Sequence[str]
    salt: str
    tenant: str
    arrived: float
    adapter: str = ""
    shown_token_ids: frozenset[int] = frozenset()
    grammar: Grammar | None = None

    def prepare(self, prompts: Sequence[tuple[list[int], int]]) -> GenerationGroup:
        """The samples of each (prompt token ids, max_tokens); ApiError 400 for more min_tokens than those."""
        for _, max_tokens in prompts:
            if (self.body.min_tokens or 0) > max_tokens:
                message = f"min_tokens: {self.body.min_tokens} is more than max_tokens, which is {max_tokens}"
                raise bad_request(message, "min_tokens")
        names = [
            [f"{self.request_id.own}-{index}-{number}" for number in range(self.body.num_samples)]
            for index in range(len(prompts))
        ]
        request = InFlightRequest(
            request_id=self.request_id,
            tenant=self.tenant,
            arrived=self.arrived,
            sequence_ids=tuple(chain.from_iterable(names)),
        )
        if (record := request.record) is not None:
            record.model, record.streams = self.body.model, self.body.stream is True
        samples = [self._samples(own, *prompt) for own, prompt in zip(names, prompts, strict=True)]
        return GenerationGroup(samples, request, self.state.requests)

    def _samples(self, names: list[str], prompt_token_ids: list[int], max_tokens: int) -> PromptSamples:
        client = self.state.client
        first, *others = names
        request = EngineRequest(
            request_id=first,
            prompt_token_ids=prompt_token_ids,
            sampling=self._sampling(max_tokens),
            children=others,
            cache_salt=self.salt,
            adapter=self.adapter,
            rotates=self.body.rotates,
            tenant=self.tenant,
            priority=self.body.priority or 0,
            timeout=self.body.timeout,
            reports_position=self.state.stream_queue_position and self.body.stream is True,
            prompt_logprobs=self.body.num_prompt_logprobs,
        )
        prompt = PromptReading(
            tokenizer=self.tokenizer,
            token_ids=prompt_token_ids,
            echoes=self.body.echoes,
            num_top=self.body.num_logprobs,
            tells_logprobs=self.body.num_prompt_logprobs is not None,
        )
        stops = self.stops if self.grammar is None else ()
        rules = replace(self.body.text_rules(stops), shown_token_ids=self.shown_token_ids)
        begun = asyncio.Event()
        sources = [partial(_begin, client, request, begun), *(partial(_follow, client, id_, begun) for id_ in others)]
        generations = [
            Generation(
                self.state,
                self.tokenizer,
                source,
                rules,
                self.arrived,
                prompt,
                is_first=source is sources[0],
                num_samples=len(names),
                max_tokens=max_tokens,
            )
            for source in sources
        ]
        return PromptSamples(prompt, generations, self.body.num_choices)

    def _sampling(self, max_tokens: int) -> SamplingParams:
        sampling = self.body.sampling(max_tokens)
        if self.grammar is None:
            return sampling
        return msgspec.structs.replace(sampling, grammar=self.grammar, stop_token_ids=[])


def _begin(client: EngineClient, request: EngineRequest, begun: asyncio.Event) -> AsyncGenerator[RequestDelta]:
    """The deltas of a request, to be read at once; ``begun`` once its children can be followed."""
    begun.set()  # who waits for it runs after this task's next pause, when the engine has the request
    return client.generate(request)


async def _follow(client: EngineClient, child_id: str, begun: asyncio.Event) -> AsyncGenerator[RequestDelta]:
    await begun.wait()
    async with contextlib.aclosing(client.follow(child_id)) as deltas:
        async for delta in deltas:
            yield delta
