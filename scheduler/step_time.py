"""StepTime: how long steps take, learnt from those that ran.

A step costs ``base`` seconds and ``per_token`` more for each token it computes, fitted by least squares in which older
steps count less and less. Used for estimates only: nothing that is decided by it can change an answer.
"""

from __future__ import annotations


class StepTime:
    """A running fit of seconds over tokens; ``memory`` is the number of steps that count."""

    def __init__(self, memory: int = 200) -> None:
        self._keep = 1.0 - 1.0 / memory
        self._count = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step of ``num_tokens`` tokens took ``seconds``."""
        keep = self._keep
        self._count = keep * self._count + 1.0
        self._x = keep * self._x + num_tokens
        self._y = keep * self._y + seconds
        self._xx = keep * self._xx + num_tokens * num_tokens
        self._xy = keep * self._xy + num_tokens * seconds

    @property
    def is_known(self) -> bool:
        """Whether any step was seen."""
        return self._count > 0.0

    @property
    def per_token(self) -> float:
        """Seconds that one token more costs; where all steps were alike, their seconds over their tokens."""
        spread = self._count * self._xx - self._x * self._x
        if spread > 1e-6 * self._count * self._xx:
            slope = (self._count * self._xy - self._x * self._y) / spread
            if slope > 0.0:
                return slope
        return self._y / self._x if self._x else 0.0

    def seconds(self, num_tokens: float) -> float:
        """Estimate for a step of ``num_tokens`` tokens; 0 when nothing is known."""
        if not self._count:
            return 0.0
        mean = self._y / self._count
        return max(0.0, mean + self.per_token * (num_tokens - self._x / self._count))
