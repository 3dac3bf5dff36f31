"""GrammarMatcher: which tokens may come next in one sequence that follows a grammar, and `GrammarMasks`, their masks.

    accept(token) ... accept(token) of a step -> GrammarMasks.begin() -> a thread fills the masks -> allowed() waits

Masks of a step are computed together, on a thread and without the interpreter's lock, while the step's tokens are sent
and the device works. A matcher is a `TokenConstraint` (see `engine.logit_edits`). Knows token ids and no text.
Invariants: a matcher that is being worked on is touched by nobody else; an array that was handed out never changes.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from llguidance import LLExecutor, LLMatcher

from engine.block_tables import Array
from engine.grammar_source import GrammarError, readable
from engine.sampling_params import GrammarKind

WORD_BITS = 32


class GrammarMasks:
    """Computes masks for the matchers that have accepted a token since it last began."""

    def __init__(self) -> None:
        self._executor: LLExecutor | None = None  # has threads
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._due: list[GrammarMatcher] = []

    def add(self, matcher: GrammarMatcher) -> None:
        """Compute the mask of this matcher when the next round begins."""
        self._due.append(matcher)

    def begin(self) -> None:
        """Start on all masks that are due; returns at once."""
        if not self._due:
            return
        due, self._due = self._due, []
        words = np.empty((len(due), due[0].num_words), dtype=np.int32)
        done = self._pool.submit(self._fill, [(one.inner, row) for row, one in enumerate(due)], words)
        for row, matcher in zip(words, due, strict=True):
            matcher.expect(row, done)

    def _fill(self, matchers: list[tuple[LLMatcher, int]], words: Array) -> None:
        if self._executor is None:
            self._executor = LLExecutor()
        self._executor.unsafe_compute_mask_ptr(matchers, words.ctypes.data, words.strides[0], len(words))


class GrammarMatcher:
    """The grammar of one sequence. ``is_over``: its tokens are a whole output, and nothing can follow.

    That may show only in what is allowed: then it is nothing, or an EOS.
    """

    def __init__(
        self, inner: LLMatcher, kind: GrammarKind, first: Array, masks: GrammarMasks, never: Array | None = None
    ) -> None:
        """``first`` has the tokens that may begin the output, ``never`` those that are not drawn in any case."""
        self.inner = inner
        self.num_words = len(first)
        self.is_over = False
        self._kind = kind
        self._masks = masks
        self._words = first
        self._never = never
        self._done: Future[None] | None = None
        self._is_due = False

    def expect(self, words: Array, done: Future[None]) -> None:
        """What may come next will be in ``words`` when ``done``; until then the matcher is not to be touched."""
        self._words, self._done, self._is_due = words, done, False

    def allowed(self) -> Array:
        """Int32 words of what may come next, none set where nothing may; EOS may where the output may end.

        Raises GrammarError where the grammar got too complex.
        """
        self._wait()
        return self._words if self._never is None else self._words & ~self._never

    def accept(self, token_id: int) -> None:
        """The sequence goes on with this token. Raises GrammarError where it may not."""
        self._wait()
        if not self.inner.consume_token(token_id):
            self._check()
            raise GrammarError(f"token {token_id} does not follow the grammar")
        self.is_over = self.inner.is_stopped()
        if not self.is_over:
            self._is_due = True
            self._masks.add(self)

    def may_end(self) -> bool:
        """Whether the tokens so far are a whole output."""
        self._wait()
        return bool(self.inner.is_accepting())

    def _wait(self) -> None:
        if self._is_due:
            self._masks.begin()
        if self._done is not None:
            self._done.result()
            self._done = None
            self._check()

    def _check(self) -> None:
        if self.inner.is_error():
            raise GrammarError(f"the grammar got too complex: {readable(self.inner.get_error(), self._kind)}")
