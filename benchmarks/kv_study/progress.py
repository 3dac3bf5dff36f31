"""The bar of a study: parts weigh what they take, so that the time left is about right.

Weights are in seconds on some machine; only their ratios matter. The bar is on stderr, and only where that is a
terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from tqdm import tqdm


class Progress:
    """A bar over parts of these ``weights``; each is begun with its number of steps, and stepped."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._bar = tqdm(
            total=sum(weights.values()),
            bar_format="{desc} {percentage:3.0f}% |{bar}| {elapsed} gone, {remaining} left",
            disable=None,
            leave=False,
        )
        self._step = 0.0
        self._left = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def begin(self, part: str, steps: int) -> None:
        """What was left of the part before is done."""
        self._bar.update(self._left)
        self._bar.set_description(part)
        self._left = self._weights[part]
        self._step = self._left / max(1, steps)

    def step(self, count: int = 1) -> None:
        done = min(self._left, count * self._step)
        self._left -= done
        self._bar.update(done)
