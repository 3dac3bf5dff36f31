"""Generation: one sequence on its way from the engine's token ids to text.

Sits between the engine and the endpoints (their formats), and knows neither HTTP nor JSON. Invariants: a generation
that was started is counted exactly once (`CountedSequence`); when its stream is closed, early or not, the engine has
been told and nothing of it runs on.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable

import msgspec

from engine.messages import Ledger, RequestDelta
from scheduler.request import FinishReason
from server.generation.counted_sequence import CountedSequence
from server.generation.output_text import OutputText, TextRules
from server.generation.prompt_reading import PromptReading
from server.generation.token_logprob import TokenLogprob
from server.metrics.metrics import RequestEnd
from server.state import ServerState
from server.text.tokenizer import Tokenizer


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """New text of one sequence, perhaps none; ``finish_reason`` (stop or length) only on its last.

    ``stop_reason`` says what stopped it: the stop string, the id among ``stop_token_ids``, or None for EOS. ``ledger``
    comes with the last, except after a stop string: then the server ended the sequence, not the engine that keeps it.
    ``queue_position`` comes alone, before any text: 1 for the one that starts next. ``logprobs`` are those of the
    tokens in ``text``, where the request asked for them; an echoed prompt comes first of all, with its own.

    There is one for every token of every stream, and a struct is made in a fraction of a dataclass's time.
    """

    text: str
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    ledger: Ledger | None = None
    queue_position: int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


class Generation:
    """One sequence, from its first token to its last text delta.

    ``open_deltas`` starts it in the engine and yields what comes of it; that of the ``is_first`` sample of a prompt
    says what the engine knows of the ``prompt``. ``arrived`` is on the clock of ``time.monotonic``. ``num_samples`` are
    those of the prompt, ``max_tokens`` the most that this one may have.
    """

    def __init__(
        self,
        state: ServerState,
        tokenizer: Tokenizer,
        open_deltas: Callable[[], AsyncGenerator[RequestDelta]],
        rules: TextRules,
        arrived: float,
        prompt: PromptReading,
        *,
        is_first: bool,
        num_samples: int,
        max_tokens: int,
    ) -> None:
        ready = state.client.ready
        self._eos_token_ids = frozenset(ready.eos_token_ids if ready is not None else ())
        self._metrics = state.metrics
        self._open_deltas = open_deltas
        self._keeps_stop_token = rules.includes_stop
        self._prompt = prompt
        self._is_first = is_first
        self._num_samples = num_samples
        self._max_tokens = max_tokens
        self._begun = False
        self._output = OutputText(tokenizer, rules)
        self._arrived = arrived
        self._last_token_at: float | None = None
        self._num_drawn_tokens = 0
        self._logprob = 0.0
        self.num_cached_tokens = 0
        self.first_token_at: float | None = None  # on the clock of time.monotonic

    @property
    def num_completion_tokens(self) -> int:
        """Tokens so far, those after a stop string excepted."""
        return self._output.num_tokens

    @property
    def mean_logprob(self) -> float:
        """Log probability per token drawn so far, those after a stop string included; of use where ``rank`` is set."""
        return self._logprob / self._num_drawn_tokens if self._num_drawn_tokens else -math.inf

    async def stream(self) -> AsyncGenerator[TextDelta]:
        """The text as it comes. Raises ApiError when the engine fails. Close it to abort."""
        last = None
        with CountedSequence(self._metrics, self._end) as sequence:
            if self._is_first:
                self._metrics.count_samples(self._num_samples)
            async with contextlib.aclosing(self._open_deltas()) as deltas:
                async for delta in deltas:
                    sequence.check(delta)
                    if delta.queue_position is not None:
                        yield TextDelta("", queue_position=delta.queue_position)
                        continue
                    if not self._begun:
                        if self._is_first:
                            self._prompt.feed(delta.prompt_logprobs)
                        if not delta.token_ids and delta.finish_reason is None:
                            continue
                        if (echo := await self._begin()) is not None:
                            yield echo
                    text = self._read(delta)
                    if text.finish_reason is not None:
                        # Leave the engine's stream first: a stop string ends the sequence before the engine knows.
                        last = text
                        break
                    yield text
            sequence.end(None if last is None else last.finish_reason)
        # counted before the last delta is read, since the request is in flight no more
        assert last is not None
        yield last

    async def _begin(self) -> TextDelta | None:
        """The echoed prompt, if it is wanted, once all that it tells is known."""
        if self._is_first and not self._prompt.is_complete:
            raise RuntimeError("the engine began to answer and has not told all of the prompt")
        await self._prompt.until_complete()
        self._begun = True
        if not self._prompt.echoes:
            return None
        text = self._prompt.text()
        self._output.begin_after(text)
        return TextDelta(text, logprobs=self._prompt.logprobs())

    def _read(self, delta: RequestDelta) -> TextDelta:
        if delta.num_cached_tokens > self.num_cached_tokens:
            self.num_cached_tokens = delta.num_cached_tokens
        self._num_drawn_tokens += len(delta.token_ids)
        self._logprob += delta.logprob
        if delta.token_ids:
            self._observe_tokens(len(delta.token_ids))
        visible = delta.token_ids if delta.finish_reason is None else self._without_stop_token(delta)
        output = self._output
        text = output.feed(visible, delta.logprobs)
        if output.stop is not None:
            return TextDelta(text, FinishReason.STOP, output.stop, logprobs=output.take_logprobs())
        if delta.finish_reason is None:
            return TextDelta(text, logprobs=output.take_logprobs() if delta.logprobs else ())
        text += output.finish()
        output.end_by(delta.token_ids[len(visible) :], delta.logprobs[len(visible) :])
        logprobs = output.take_logprobs(at_end=True)
        return TextDelta(text, delta.finish_reason, delta.stop_token_id, delta.ledger, logprobs=logprobs)

    def _without_stop_token(self, delta: RequestDelta) -> list[int]:
        """The ids whose text is output: all but the EOS or stop token that ended the sequence."""
        token_ids = delta.token_ids
        if delta.finish_reason is not FinishReason.STOP or not token_ids or self._keeps_stop_token:
            return token_ids
        newest = token_ids[-1]
        ended = newest in self._eos_token_ids if delta.stop_token_id is None else newest == delta.stop_token_id
        return token_ids[:-1] if ended else token_ids

    def _end(self, outcome: FinishReason) -> RequestEnd:
        token_seconds, first, last = None, self.first_token_at, self._last_token_at
        if first is not None and last is not None and self._num_drawn_tokens > 1:
            token_seconds = (last - first) / (self._num_drawn_tokens - 1)
        return RequestEnd(
            outcome=outcome,
            seconds=time.monotonic() - self._arrived,
            prompt_tokens=len(self._prompt.token_ids),
            generation_tokens=self.num_completion_tokens,
            max_tokens=self._max_tokens,
            token_seconds=token_seconds,
        )

    def _observe_tokens(self, num_tokens: int) -> None:
        now = time.monotonic()
        if self._last_token_at is None:
            self.first_token_at = now
            self._metrics.observe_first_token(now - self._arrived)
        else:
            self._metrics.observe_tokens(now - self._last_token_at, num_tokens)
        self._last_token_at = now
