"""From validated token ids to text: one Generation for each sequence, and several of them as one stream.

Sits between the engine (token ids) and the endpoints (their formats), and knows neither HTTP nor JSON. Invariants: a
generation that was started is counted exactly once, as stop, length, abort or error; when its stream is closed, early
or not, the engine has been told and nothing of it runs on; the text of a stop string, and of the token that ended the
sequence, is never emitted.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from engine.client import EngineError
from engine.messages import EngineRequest, RequestDelta
from scheduler.request import FinishReason
from server.errors import ApiError, from_engine, internal_error, unavailable
from server.state import ServerState
from server.text.detokenizer import Detokenizer
from server.text.stop_strings import StopMatcher
from server.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of one sequence, perhaps none; ``finish_reason`` (stop or length) only on its last.

    ``stop_reason`` says what stopped it: the stop string, the id among ``stop_token_ids``, or None for EOS.
    """

    text: str
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request; prompt tokens include the cached ones."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def body(self) -> dict[str, object]:
        """The API's usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Generation:
    """One sequence, from its request to its last text delta. ``arrived`` is on the clock of ``time.monotonic``."""

    def __init__(
        self, state: ServerState, tokenizer: Tokenizer, request: EngineRequest, stops: Sequence[str], arrived: float
    ) -> None:
        ready = state.client.ready
        self._eos_token_ids = frozenset(ready.eos_token_ids if ready is not None else ())
        self._client = state.client
        self._metrics = state.metrics
        self._request = request
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopMatcher(stops) if stops else None
        self._arrived = arrived
        self._last_token_at: float | None = None
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.num_completion_tokens = 0
        self.num_cached_tokens = 0

    async def stream(self) -> AsyncGenerator[TextDelta]:
        """The text as it comes. Raises ApiError when the engine fails. Close it to abort."""
        outcome = FinishReason.ABORT  # what it is when the consumer closes the stream
        try:
            last = None
            async with contextlib.aclosing(self._client.generate(self._request)) as deltas:
                async for delta in deltas:
                    if delta.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
                        outcome = delta.finish_reason
                        raise _failure(delta)
                    text = self._read(delta)
                    if text.finish_reason is not None:
                        # Leave the engine's stream first: a stop string ends the sequence before the engine knows.
                        last = text
                        break
                    yield text
            if last is None or last.finish_reason is None:
                outcome = FinishReason.ERROR
                raise internal_error()
            outcome = last.finish_reason
            yield last
        except ApiError:
            raise
        except EngineError as error:
            outcome = FinishReason.ERROR
            raise from_engine(error) from error
        except Exception:
            outcome = FinishReason.ERROR
            raise
        finally:
            self._metrics.count_outcome(outcome, time.monotonic() - self._arrived)

    def _read(self, delta: RequestDelta) -> TextDelta:
        self.num_cached_tokens = max(self.num_cached_tokens, delta.num_cached_tokens)
        if delta.token_ids:
            self._observe_tokens(len(delta.token_ids))
        visible = self._without_stop_token(delta)
        text = self._feed(visible)
        if self._stops is not None and self._stops.matched is not None:
            return TextDelta(text, FinishReason.STOP, self._stops.matched)
        self.num_completion_tokens += len(delta.token_ids) - len(visible)
        if delta.finish_reason is None:
            return TextDelta(text)
        return TextDelta(text + self._finish(), delta.finish_reason, delta.stop_token_id)

    def _without_stop_token(self, delta: RequestDelta) -> list[int]:
        """The ids whose text is output: all but the EOS or stop token that ended the sequence."""
        token_ids = delta.token_ids
        if delta.finish_reason is not FinishReason.STOP or not token_ids:
            return token_ids
        newest = token_ids[-1]
        ended = newest in self._eos_token_ids if delta.stop_token_id is None else newest == delta.stop_token_id
        return token_ids[:-1] if ended else token_ids

    def _feed(self, token_ids: list[int]) -> str:
        """The text these tokens bring, up to a stop string; counts the tokens, those after a stop string excepted."""
        if self._stops is None:
            self.num_completion_tokens += len(token_ids)
            return self._detokenizer.feed(token_ids)
        text = ""
        for token_id in token_ids:
            self.num_completion_tokens += 1
            text += self._stops.feed(self._detokenizer.feed((token_id,)))
            if self._stops.matched is not None:
                break
        return text

    def _finish(self) -> str:
        """What was held back: the rest of a cut character, then the start of a stop string that never came."""
        tail = self._detokenizer.finish()
        if self._stops is None:
            return tail
        return self._stops.feed(tail) + self._stops.flush()

    def _observe_tokens(self, num_tokens: int) -> None:
        now = time.monotonic()
        if self._last_token_at is None:
            self._metrics.observe_first_token(now - self._arrived)
        else:
            self._metrics.observe_tokens(now - self._last_token_at, num_tokens)
        self._last_token_at = now


def _failure(delta: RequestDelta) -> ApiError:
    """What a last delta that is no result means: an error of its own, or an abort that nobody here asked for."""
    if delta.finish_reason is FinishReason.ABORT:
        return unavailable("the engine aborted the request", "aborted")
    return ApiError(500, delta.error or "the engine failed on this request", code="engine_error")


class GenerationGroup:
    """The sequences of one API request, in the order of its choices."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self._generations = generations

    def __len__(self) -> int:
        return len(self._generations)

    @property
    def usage(self) -> Usage:
        """Counts so far, summed over the sequences."""
        return Usage(
            prompt_tokens=sum(generation.num_prompt_tokens for generation in self._generations),
            completion_tokens=sum(generation.num_completion_tokens for generation in self._generations),
            cached_tokens=sum(generation.num_cached_tokens for generation in self._generations),
        )

    async def stream(self) -> AsyncGenerator[tuple[int, TextDelta]]:
        """(choice index, delta) as they come; the first failure ends all. Close it to abort what still runs."""
        if len(self._generations) == 1:
            async with contextlib.aclosing(self._generations[0].stream()) as deltas:
                async for delta in deltas:
                    yield 0, delta
            return
        # Bounded, so that a slow reader slows the reading of the engine's collectors, where deltas merge.
        queue: asyncio.Queue[tuple[int, TextDelta | Exception]] = asyncio.Queue(maxsize=len(self._generations))
        tasks = [asyncio.create_task(_pump(index, one, queue)) for index, one in enumerate(self._generations)]
        try:
            unfinished = len(tasks)
            while unfinished:
                index, item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                unfinished -= item.finish_reason is not None
                yield index, item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def collect(self) -> list[TextDelta]:
        """Each sequence's whole text and how it ended."""
        texts: list[list[str]] = [[] for _ in self._generations]
        lasts = [TextDelta("")] * len(texts)
        async with contextlib.aclosing(self.stream()) as deltas:
            async for index, delta in deltas:
                texts[index].append(delta.text)
                lasts[index] = delta
        return [
            TextDelta("".join(parts), last.finish_reason, last.stop_reason)
            for parts, last in zip(texts, lasts, strict=True)
        ]


async def _pump(index: int, generation: Generation, queue: asyncio.Queue[tuple[int, TextDelta | Exception]]) -> None:
    try:
        async with contextlib.aclosing(generation.stream()) as deltas:
            async for delta in deltas:
                await queue.put((index, delta))
    except Exception as error:
        await queue.put((index, error))
