"""Draws: how each open sequence draws its next token, and what changes its logits before it does.

Knows neither the scheduler nor steps on their way. Invariants: a sequence is known from `add` to `forget`; an editor
is told every token of its sequence, once and in order, whatever happens to the sequence's pages meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from engine.logit_edits import LogitEdit, LogitEditor, NothingAllowed, TokenConstraint
from engine.messages import EngineRequest
from engine.sampler import child_seed
from engine.sampling_params import SamplingParams
from scheduler.batch import ScheduledBatch

Constrain = Callable[[], TokenConstraint]


@dataclass(frozen=True, slots=True)
class StepDraws:
    """What a step needs to draw, by sequence; a copy, since requests may end while it runs.

    ``whole`` can't draw, for their output is whole already; ``failed`` can't either, by this error. What the step
    draws for either is lost.
    """

    sampling: Mapping[str, SamplingParams]
    edits: dict[str, list[LogitEdit | None]] = field(default_factory=dict)
    whole: list[str] = field(default_factory=list)
    failed: list[tuple[str, Exception]] = field(default_factory=list)


class Draws:
    """Of the open sequences of a model with ``vocab_size`` tokens."""

    def __init__(self, eos_token_ids: frozenset[int], vocab_size: int) -> None:
        self._eos_token_ids = eos_token_ids
        self._vocab_size = vocab_size
        self._sampling: dict[str, SamplingParams] = {}
        self._editors: dict[str, LogitEditor] = {}  # of those whose logits change

    def editors(
        self, request: EngineRequest, names: Iterable[str], constrain: Constrain | None
    ) -> dict[str, LogitEditor]:
        """New ones, for those of ``names`` that need one; ValueError for a request that can't have them."""
        sampling = request.sampling
        if (sampling.grammar is None) != (constrain is None):
            raise ValueError("a grammar needs its constraint, and a constraint its grammar")
        ends = (*self._eos_token_ids, *sampling.stop_token_ids)
        found = {}
        for name in names:
            constraint = None if constrain is None else constrain()
            editor = LogitEditor.needed(sampling, request.prompt_token_ids, ends, self._vocab_size, constraint)
            if editor is not None:
                found[name] = editor
        return found

    def add(self, names: Sequence[str], sampling: SamplingParams, editors: Mapping[str, LogitEditor]) -> None:
        """The sequences of one request; the seed of ``sampling`` is set."""
        for number, name in enumerate(names):
            seed = child_seed(sampling.seed or 0, number)
            self._sampling[name] = msgspec.structs.replace(sampling, seed=seed)
        self._editors |= editors

    def forget(self, name: str) -> None:
        """A sequence has ended; one that is not known is ignored."""
        self._sampling.pop(name, None)
        self._editors.pop(name, None)

    def of_step(self, batch: ScheduledBatch) -> StepDraws:
        """What the sequences that draw in this step draw by."""
        drawing = [(share, name) for share in batch.requests if share.samples for name in share.sequence_ids]
        draws = StepDraws({name: self._sampling[name] for _, name in drawing})
        if not self._editors:
            return draws
        for share, name in drawing:
            editor = self._editors.get(name)
            if editor is None:
                continue
            try:
                edits = [editor.edit(share.output_index + place) for place in range(share.num_drafts + 1)]
            except Exception as error:
                if isinstance(error, NothingAllowed) and editor.may_end():
                    draws.whole.append(name)
                else:
                    draws.failed.append((name, error))
            else:
                if any(edit is not None for edit in edits):
                    draws.edits[name] = edits
        return draws

    def accept(self, name: str, token_ids: Iterable[int]) -> bool:
        """Tell a sequence's editor of its tokens; whether they make its output whole. Raises what the editor raises."""
        editor = self._editors.get(name)
        if editor is None:
            return False
        for token_id in token_ids:
            editor.accept(token_id)
        return editor.is_over
