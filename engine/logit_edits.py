"""LogitEditor: what changes one sequence's logits before each of its tokens is drawn, told as a sparse `LogitEdit`.

    accept(token) -> counts of the output | edit(index) -> LogitEdit -> a runner changes the row, then draws from it

A penalty, a bias or a forbidden token touches a few logits, so that a row of 262,144 is never kept, nor a count for
each of them: memory is that of the tokens which occur. Only what a `TokenConstraint` allows is as wide as the
vocabulary, one bit a token.

Knows ids and numbers; nothing of tensors, steps or pages. Invariants: it is made with the prompt and told each token
of the output once, in order, so that it outlives preemption, rotation and steps that fail; an edit's arrays stay as
they are until the next token is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from engine.block_tables import Array

if TYPE_CHECKING:
    from engine.sampling_params import SamplingParams


class NothingAllowed(Exception):
    """No token may come next."""


class TokenConstraint(Protocol):
    """Which tokens may come next, given those so far: a grammar's matcher. What it raises ends its request alone."""

    def allowed(self) -> Array | None:
        """Int32 words: token i may come next where bit i % 32 of word i // 32 is set; ids beyond the words may not.

        None: any token may. The array must stay as it is until the next `accept`.
        """

    def accept(self, token_id: int) -> None:
        """The sequence goes on with this token. Work on what is allowed next may begin here."""

    @property
    def is_over(self) -> bool:
        """Whether nothing can follow: the output is whole, without a token that says so."""

    def may_end(self) -> bool:
        """Whether the output is whole, so that it may end here where nothing else is allowed."""


@dataclass(frozen=True, slots=True)
class LogitEdit:
    """Changes of one row of logits, all in float32.

    The logit x of ``ids[i]`` becomes x / ``scales[i]`` where it is positive and x * ``scales[i]`` where it is not, and
    then ``shifts[i]`` is added. After that tokens that ``allowed`` has no bit for (see `TokenConstraint.allowed`) are
    minus infinity. ``ids`` int64 are distinct; ``scales`` and ``shifts`` float32, [num_ids] each.
    """

    ids: Array
    scales: Array
    shifts: Array
    allowed: Array | None = None


StepEdits = Mapping[str, Sequence[LogitEdit | None]]  # by sequence: for each token that it draws in a step
NO_EDITS: StepEdits = {}


def edits_of_rows(edits: StepEdits, draws: Iterable[tuple[str, int]]) -> dict[int, LogitEdit]:
    """The edits of a step by row, where row i is of the sequence and the draw within the step ``draws[i]``."""
    if not edits:
        return {}
    found = ((row, edits[name][place]) for row, (name, place) in enumerate(draws) if name in edits)
    return {row: edit for row, edit in found if edit is not None}


class LogitEditor:
    """Of one sequence, as ``sampling`` wants it. ``ending_ids`` are its stop tokens and EOS ids, ignored or not."""

    def __init__(
        self,
        sampling: SamplingParams,
        prompt: Sequence[int],
        ending_ids: Iterable[int],
        vocab_size: int,
        constraint: TokenConstraint | None = None,
    ) -> None:
        """Raises ValueError for a bias of a token that there is not."""
        outside = [token_id for token_id in sampling.logit_bias if not 0 <= token_id < vocab_size]
        if outside:
            raise ValueError(f"logit_bias: token id {outside[0]} is outside the vocabulary of {vocab_size} tokens")
        self._repetition = sampling.repetition_penalty
        self._frequency = sampling.frequency_penalty
        self._presence = sampling.presence_penalty
        self._bias = sampling.logit_bias
        self._min_tokens = sampling.min_tokens
        self._constraint = constraint
        self._has_penalties = self._repetition != 1.0 or self._frequency != 0.0 or self._presence != 0.0
        repeated = np.unique(np.asarray(prompt if self._repetition != 1.0 else (), dtype=np.int64))
        repeated = repeated[(repeated >= 0) & (repeated < vocab_size)]  # what has no logit is never drawn
        forbidden = [one for one in ending_ids if 0 <= one < vocab_size] if self._min_tokens else []
        self._ids = np.union1d(repeated, np.array([*self._bias, *forbidden], dtype=np.int64))
        self._count = len(self._ids)
        self._scales = np.ones(self._count, dtype=np.float32)
        self._scales[np.searchsorted(self._ids, repeated)] = self._repetition
        self._shifts = np.array([self._bias.get(one, 0.0) for one in self._ids.tolist()], dtype=np.float32)
        self._forbidden = np.searchsorted(self._ids, np.unique(np.array(forbidden, dtype=np.int64)))
        self._places = {token_id: place for place, token_id in enumerate(self._ids.tolist())}
        self._occurrences: dict[int, int] = {}  # in the output, by token id

    @classmethod
    def needed(
        cls,
        sampling: SamplingParams,
        prompt: Sequence[int],
        ending_ids: Iterable[int],
        vocab_size: int,
        constraint: TokenConstraint | None = None,
    ) -> LogitEditor | None:
        """An editor where something changes the logits of such a request. Raises ValueError as the constructor does."""
        editor = cls(sampling, prompt, ending_ids, vocab_size, constraint)
        return editor if editor.reads_tokens or editor._count else None

    @property
    def reads_tokens(self) -> bool:
        """Whether an edit depends on the tokens before it, and not only on how many there are."""
        return self._has_penalties or self._constraint is not None

    @property
    def is_over(self) -> bool:
        """Whether its constraint says that nothing can follow."""
        return self._constraint is not None and self._constraint.is_over

    def may_end(self) -> bool:
        """Whether its constraint says that the output is whole."""
        return self._constraint is not None and self._constraint.may_end()

    def accept(self, token_id: int) -> None:
        """The sequence goes on with this token."""
        if self._has_penalties:
            place = self._places.get(token_id)
            if place is None:
                place = self._add(token_id)
            occurrences = self._occurrences[token_id] = self._occurrences.get(token_id, 0) + 1
            self._scales[place] = self._repetition
            self._shifts[place] = self._bias.get(token_id, 0.0) - self._frequency * occurrences - self._presence
        if self._constraint is not None:
            self._constraint.accept(token_id)

    def edit(self, output_index: int) -> LogitEdit | None:
        """What changes before token ``output_index`` of the output is drawn; None: nothing. Raises NothingAllowed."""
        count, shifts = self._count, self._shifts
        forbidden = self._forbidden if output_index < self._min_tokens else self._forbidden[:0]
        if len(forbidden):
            shifts = shifts.copy()
            shifts[forbidden] = -np.inf
        allowed = None if self._constraint is None else self._constraint.allowed()
        if allowed is not None and not _any_allowed(allowed, self._ids[forbidden]):
            raise NothingAllowed(
                f"no token may come at place {output_index} of the output: "
                + ("all that the grammar allows would end it before min_tokens" if allowed.any() else "it has ended")
            )
        if allowed is None and not (self._has_penalties and count) and not self._bias and not len(forbidden):
            return None
        return LogitEdit(self._ids[:count], self._scales[:count], shifts[:count], allowed)

    def _add(self, token_id: int) -> int:
        place = self._count
        if place == len(self._ids):
            room = np.zeros(max(16, place), dtype=np.int64)
            self._ids = np.concatenate([self._ids, room])
            self._scales = np.concatenate([self._scales, room.astype(np.float32)])
            self._shifts = np.concatenate([self._shifts, room.astype(np.float32)])
        self._ids[place] = token_id
        self._places[token_id] = place
        self._count += 1
        return place


def _any_allowed(words: Array, forbidden: Array) -> bool:
    """Whether ``words`` have a bit that none of the ``forbidden`` ids is."""
    if len(forbidden):
        words = words.copy()
        within = forbidden[forbidden < 32 * len(words)]
        np.bitwise_and.at(words.view(np.uint32), within // 32, ~(np.uint32(1) << (within % 32).astype(np.uint32)))
    return bool(np.ascontiguousarray(words).view(np.bool_).any())  # by bytes it ends at the first
