"""StepBudget: how the tokens of one step are divided.

Every running request that has caught up, and so wants one token, gets it before any prompt gets more: streams flow on
whatever else is computed. What is left goes to prompts, in the policy's order. A prompt with more than
``long_prefill_threshold`` tokens to go is *long*; all long ones together get no more than that many tokens in a step,
so that short prompts and newcomers find room beside them, and a step stays short while somebody streams. Where nobody
does, long prompts get what is left over in the end, those that run first.
"""

from __future__ import annotations


class StepBudget:
    """The tokens of one step, handed out by `decode`, `prefill` and `left_over` and, last, `prefill` once more.

    ``long_runs``: a running prompt is long, so the long ones' part is kept from those that are served before it.
    ``stream_waits``: somebody streams who takes part in every other step only (see `Request.draws_ahead`).
    """

    def __init__(
        self,
        num_tokens: int,
        num_decodes: int,
        long_prefill_threshold: int,
        *,
        long_runs: bool,
        stream_waits: bool = False,
    ) -> None:
        self._decodes_left = min(num_decodes, num_tokens)
        self._somebody_streams = num_decodes > 0 or stream_waits
        self._threshold = long_prefill_threshold
        self.prefill_left = num_tokens - self._decodes_left
        self._long_left = min(long_prefill_threshold, self.prefill_left)
        self._kept = self._long_left if long_runs else 0

    def decode(self) -> int:
        """The token of a request that wants one; 0 when more of them run than a step has tokens."""
        if not self._decodes_left:
            return 0
        self._decodes_left -= 1
        return 1

    def prefill(self, num_tokens: int, limit: int) -> int:
        """Tokens, at most ``limit``, for a prompt that has ``num_tokens`` to go; 0 when there are none for it."""
        if num_tokens > self._threshold:
            granted = min(num_tokens, limit, self._long_left, self.prefill_left)
            self._long_left -= granted
            self._kept = 0
        else:
            granted = min(num_tokens, limit, self.prefill_left - self._kept)
        self.prefill_left -= granted
        return granted

    @property
    def has_left_over(self) -> bool:
        """Whether nobody streams and not all tokens are spent."""
        return not self._somebody_streams and self.prefill_left > 0

    def open_to_long(self) -> None:
        """What is still left over when every prompt has been served is for long ones that are to start."""
        self._long_left = self.prefill_left

    def left_over(self, num_tokens: int) -> int:
        """At most ``num_tokens`` more for a prompt, once everybody was served and `has_left_over` is true."""
        granted = min(num_tokens, self.prefill_left)
        self.prefill_left -= granted
        return granted
