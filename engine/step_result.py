"""StepResult: what a launched step yields once it is over.

Knows neither how steps run nor who asked. A step that ran where it was launched is a `FinishedStep`; one that a device
still works on is the runner's own kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from scheduler.batch import ScheduledBatch

if TYPE_CHECKING:
    from engine.logit_edits import StepEdits
    from engine.prompt_states import PromptPart, PromptStates
    from engine.sampling_params import SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """The next token of a sequence, with the sum of log probabilities where its ``rank`` asked for it, else 0.

    The first ``num_accepted`` drafts of the request's share stand, and it comes behind them. ``logprobs``: of these
    and the token itself, where the request asked for them.
    """

    token_id: int
    logprob: float
    num_accepted: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()

    @classmethod
    def of(
        cls, token_id: int, params: SamplingParams, logprobs: Sequence[TokenLogprobs], num_accepted: int = 0
    ) -> DrawnToken:
        """With what ``params`` ask for of the ``logprobs`` of the drafts that stand and of the token."""
        return cls(
            token_id,
            sum(one.logprob for one in logprobs) if params.rank else 0.0,
            num_accepted,
            tuple(logprobs) if params.logprobs is not None else (),
        )


class StepResult(Protocol):
    """A step that was launched; `tokens` first, then ``states`` and ``seconds``."""

    def tokens(self) -> dict[str, DrawnToken]:
        """Wait for the next token of each sequence that draws one. Raises what the step raised."""

    @property
    def states(self) -> Mapping[str, PromptStates]:
        """What it read of prompts, by request."""

    @property
    def seconds(self) -> float:
        """Time the step took where it ran."""

    @property
    def sample_seconds(self) -> float:
        """Part of it, at its end, in which tokens were drawn from logits; 0 where that is not known apart."""


class StepRunner(Protocol):
    """Runs steps in the order they are launched."""

    def launch(
        self,
        batch: ScheduledBatch,
        sampling: Mapping[str, SamplingParams],
        edits: StepEdits,
        parts: Mapping[str, PromptPart],
    ) -> StepResult:
        """Begin the step, and end it too where it runs at once. Seeds of ``sampling`` must be set.

        ``edits`` has the sequences whose logits change before they draw, ``parts`` what is to be read of prompts.
        """


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step that was over when its launch returned."""

    drawn: dict[str, DrawnToken]
    seconds: float
    sample_seconds: float
    states: Mapping[str, PromptStates]

    def tokens(self) -> dict[str, DrawnToken]:
        return self.drawn
