"""DraftLength: how many tokens it pays to guess, from what came of earlier guesses of the same request.

Each guessed token that was looked at, because all before it were right, was a trial. The rate of right ones, in which
older trials count less and less, is taken for the chance ``p`` that the next one is right, so that the j-th token of a
guess is of use with p ** j (Leviathan et al., 2023, section 3). It costs the same share of a step's time wherever it
stands. So a guess goes on while p ** j is above its cost.

Knows rates and costs, neither tokens nor time.
"""

from __future__ import annotations

import math

KEPT = 0.85  # of the trials so far, with each guess that was looked at
ASSUMED_RIGHT, ASSUMED_WRONG = 1.0, 1.0  # trials before the first
RETRY_AFTER = 32  # guesses that were not made, before one is made to see whether things have changed
RETRY_TOKENS = 2
MOST_RETRY_COST = 0.5  # where a token costs more, its being right would not bring enough to look again
MOST_ACCEPTANCE = 0.99  # that is believed


class DraftLength:
    """Of one request."""

    __slots__ = ("_num_withheld", "_right", "_wrong")

    def __init__(self) -> None:
        self._right, self._wrong = ASSUMED_RIGHT, ASSUMED_WRONG
        self._num_withheld = 0

    @property
    def acceptance(self) -> float:
        """The chance that a guessed token is right where all before it were, 0 to 1."""
        return min(MOST_ACCEPTANCE, self._right / (self._right + self._wrong))

    def choose(self, limit: int, cost: float) -> int:
        """Tokens to guess, at most ``limit``, where each costs ``cost`` of what a right one brings.

        0 where none pays. After `RETRY_AFTER` such answers a short guess is due all the same.
        """
        if cost <= 0.0:
            return limit
        if self.acceptance > cost:
            self._num_withheld = 0
            return min(limit, math.ceil(math.log(cost) / math.log(self.acceptance)) - 1)
        if cost > MOST_RETRY_COST:
            return 0
        self._num_withheld += 1
        if self._num_withheld <= RETRY_AFTER:
            return 0
        self._num_withheld = 0
        return min(limit, RETRY_TOKENS)

    def observe(self, num_guessed: int, num_right: int) -> None:
        """Of ``num_guessed`` tokens the first ``num_right`` were right, and the next one, if any, was wrong."""
        self._right = KEPT * self._right + num_right
        self._wrong = KEPT * self._wrong + (num_right < num_guessed)
