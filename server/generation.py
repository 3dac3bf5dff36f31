"""Generation: one sequence on its way from the engine's token ids to text.

Sits between the engine and the endpoints (their formats), and knows neither HTTP nor JSON. Invariants: a generation
that was started is counted exactly once, as stop, length, abort or error; when its stream is closed, early or not, the
engine has been told and nothing of it runs on; one that the engine refused to queue is counted as a refusal instead;
the text of a stop string, and of the token that ended the sequence, is never emitted.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from engine.client import EngineError
from engine.messages import Ledger, RequestDelta
from scheduler.request import FinishReason
from server.errors import ApiError, from_engine, from_failure, internal_error, unavailable
from server.metrics import QUEUE_FULL
from server.state import ServerState
from server.text.detokenizer import Detokenizer
from server.text.stop_strings import StopMatcher
from server.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of one sequence, perhaps none; ``finish_reason`` (stop or length) only on its last.

    ``stop_reason`` says what stopped it: the stop string, the id among ``stop_token_ids``, or None for EOS. ``ledger``
    comes with the last, except after a stop string: then the server ended the sequence, not the engine that keeps it.
    ``queue_position`` comes alone, before any text: 1 for the one that starts next.
    """

    text: str
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    ledger: Ledger | None = None
    queue_position: int | None = None


class Generation:
    """One sequence, from its first token to its last text delta.

    ``open_deltas`` starts it in the engine and yields what comes of it. ``arrived`` is on the clock of
    ``time.monotonic``.
    """

    def __init__(
        self,
        state: ServerState,
        tokenizer: Tokenizer,
        open_deltas: Callable[[], AsyncGenerator[RequestDelta]],
        stops: Sequence[str],
        arrived: float,
    ) -> None:
        ready = state.client.ready
        self._eos_token_ids = frozenset(ready.eos_token_ids if ready is not None else ())
        self._metrics = state.metrics
        self._open_deltas = open_deltas
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopMatcher(stops) if stops else None
        self._arrived = arrived
        self._last_token_at: float | None = None
        self._num_drawn_tokens = 0
        self._logprob = 0.0
        self.num_completion_tokens = 0
        self.num_cached_tokens = 0

    @property
    def mean_logprob(self) -> float:
        """Log probability per token drawn so far, those after a stop string included; of use where ``rank`` is set."""
        return self._logprob / self._num_drawn_tokens if self._num_drawn_tokens else -math.inf

    async def stream(self) -> AsyncGenerator[TextDelta]:
        """The text as it comes. Raises ApiError when the engine fails. Close it to abort."""
        outcome: FinishReason | None = FinishReason.ABORT  # what it is when the consumer closes the stream
        self._metrics.count_submitted()
        try:
            last = None
            async with contextlib.aclosing(self._open_deltas()) as deltas:
                async for delta in deltas:
                    if (failure := delta.failure) is not None:
                        self._metrics.count_failure(failure.code)
                        outcome = None if failure.code == QUEUE_FULL else FinishReason.ERROR
                        raise from_failure(failure)
                    if delta.finish_reason is FinishReason.ABORT:
                        raise unavailable("the engine aborted the request", "aborted")  # nobody here asked for it
                    if delta.queue_position is not None:
                        yield TextDelta("", queue_position=delta.queue_position)
                        continue
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
        except ApiError:
            raise
        except EngineError as error:
            outcome = FinishReason.ERROR
            raise from_engine(error) from error
        except Exception:
            outcome = FinishReason.ERROR
            raise
        finally:
            # before the last delta is read, since the request is in flight no more
            if outcome is not None:
                self._metrics.count_outcome(outcome, time.monotonic() - self._arrived)
        yield last

    def _read(self, delta: RequestDelta) -> TextDelta:
        self.num_cached_tokens = max(self.num_cached_tokens, delta.num_cached_tokens)
        self._num_drawn_tokens += len(delta.token_ids)
        self._logprob += delta.logprob
        if delta.token_ids:
            self._observe_tokens(len(delta.token_ids))
        visible = self._without_stop_token(delta)
        text = self._feed(visible)
        if self._stops is not None and self._stops.matched is not None:
            return TextDelta(text, FinishReason.STOP, self._stops.matched)
        self.num_completion_tokens += len(delta.token_ids) - len(visible)
        if delta.finish_reason is None:
            return TextDelta(text)
        return TextDelta(text + self._finish(), delta.finish_reason, delta.stop_token_id, delta.ledger)

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
