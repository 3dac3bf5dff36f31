"""GenerationGroup: the sequences of one API request, as one stream or as its choices.

Knows which sequences belong to one prompt and which of them answer it; knows neither HTTP nor JSON. Invariants: a
prompt is counted once, however many samples it has; every token generated is counted, those of discarded samples too;
when a stream is closed, every sequence of it has ended, those that had not begun included; the request can be found in
the registry while its stream is open, and no ledger tells its client of another tenant's requests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from server.generation.generation import Generation, TextDelta
from server.generation.prompt_reading import PromptReading
from server.generation.token_logprob import TokenLogprob
from server.request_registry import InFlightRequest, RequestRegistry


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request; prompt tokens include the cached ones, completion tokens those of reasoning.

    ``reasoning_tokens`` is None where nobody tells reasoning from the rest.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int | None = None

    def body(self) -> dict[str, object]:
        """The API's usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            **self._completion_details(),
        }

    def _completion_details(self) -> dict[str, object]:
        if self.reasoning_tokens is None:
            return {}
        return {"completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens}}


@dataclass(frozen=True, slots=True)
class PromptSamples:
    """The samples of one prompt, the first of which reads it; the best ``num_choices`` of them are its choices."""

    prompt: PromptReading
    generations: Sequence[Generation]
    num_choices: int

    def choose(self) -> list[int]:
        """Places of the choices among the samples: all in order, or the best by mean log probability, best first."""
        places = list(range(len(self.generations)))
        if self.num_choices < len(places):
            places.sort(key=lambda place: -self.generations[place].mean_logprob)
        return places[: self.num_choices]


class GenerationGroup:
    """The samples of all prompts of one API request, in the order of the prompts and of ``request``'s sequences."""

    def __init__(self, prompts: Sequence[PromptSamples], request: InFlightRequest, registry: RequestRegistry) -> None:
        self._prompts = prompts
        self._request = request
        self._registry = registry
        self._generations = [generation for prompt in prompts for generation in prompt.generations]

    @property
    def prompts(self) -> list[PromptReading]:
        """The prompt of each choice."""
        return [one.prompt for one in self._prompts for _ in range(one.num_choices)]

    @property
    def usage(self) -> Usage:
        """Counts so far, summed over the prompts."""
        return Usage(
            prompt_tokens=sum(len(one.prompt.token_ids) for one in self._prompts),
            completion_tokens=sum(generation.num_completion_tokens for generation in self._generations),
            cached_tokens=sum(prompt.generations[0].num_cached_tokens for prompt in self._prompts),
        )

    @property
    def first_token_at(self) -> float | None:
        """When the first token of any sample came, on the clock of ``time.monotonic``."""
        return min((at for one in self._generations if (at := one.first_token_at) is not None), default=None)

    def num_completion_tokens(self, number: int) -> int:
        """Tokens so far of the sample of this number."""
        return self._generations[number].num_completion_tokens

    async def stream(self) -> AsyncGenerator[tuple[int, TextDelta]]:
        """(number of the sample, delta) as they come; the first failure ends all. Close it to abort what still runs.

        Where every sample is a choice, the number is the choice's index.
        """
        self._begin()
        with self._registry.holding(self._request):
            if len(self._generations) == 1:
                async with contextlib.aclosing(self._generations[0].stream()) as alone:
                    async for delta in alone:
                        yield 0, delta if delta.finish_reason is None else self._ended(0, delta)
                return
            async with contextlib.aclosing(self._merged()) as merged:
                async for number, delta in merged:
                    yield number, delta if delta.finish_reason is None else self._ended(number, delta)

    def _begin(self) -> None:
        if (record := self._request.record) is not None:
            record.tenant, record.progress = self._request.tenant, self
        for number in range(len(self._generations)):
            self._request.begin(number)

    async def _merged(self) -> AsyncGenerator[tuple[int, TextDelta]]:
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

    def _ended(self, number: int, last: TextDelta) -> TextDelta:
        """``last`` as its client may see it."""
        assert last.finish_reason is not None
        self._request.end(number, last.finish_reason)
        if last.ledger is None:
            return last
        preemptions = self._registry.shown(self._request.tenant, last.ledger.preemptions)
        return replace(last, ledger=replace(last.ledger, preemptions=preemptions))

    async def collect(self) -> list[TextDelta]:
        """Each choice's whole text, with all its log probabilities, and how it ended, prompt by prompt."""
        texts: list[list[str]] = [[] for _ in self._generations]
        logprobs: list[list[TokenLogprob]] = [[] for _ in self._generations]
        lasts = [TextDelta("")] * len(texts)
        async with contextlib.aclosing(self.stream()) as deltas:
            async for number, delta in deltas:
                texts[number].append(delta.text)
                logprobs[number] += delta.logprobs
                lasts[number] = delta
        choices = []
        first = 0
        for prompt in self._prompts:
            numbers = [first + place for place in prompt.choose()]
            choices += [
                replace(lasts[number], text="".join(texts[number]), logprobs=tuple(logprobs[number]))
                for number in numbers
            ]
            first += len(prompt.generations)
        return choices


async def _pump(index: int, generation: Generation, queue: asyncio.Queue[tuple[int, TextDelta | Exception]]) -> None:
    try:
        async with contextlib.aclosing(generation.stream()) as deltas:
            async for delta in deltas:
                await queue.put((index, delta))
    except Exception as error:
        await queue.put((index, error))
