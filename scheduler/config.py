"""SchedulerConfig: the limits that a scheduler keeps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Sizes in tokens unless named otherwise.

    ``max_num_batched_tokens`` is the budget of a step; ``max_num_seqs`` bounds the requests that run at once.
    ``long_prefill_token_threshold`` is the most that long prompts compute in a step while somebody streams (None: half
    the budget). ``max_model_len`` is where requests that rotate do so (None: where the pool ends).

    ``max_queued_requests`` and ``max_queued_tokens`` bound the queue. ``watermark_tokens``: nobody is admitted unless
    every running request can still grow by so many. ``max_overtakes``: requests that may start before one that waits
    for pages and was first. ``seconds_per_page``: what moving one page to the host or back takes.
    ``num_speculative_tokens``: most drafts of a request in a step (see `Speculation`); 0: none, as where steps overlap.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int | None = None
    max_model_len: int | None = None
    max_queued_requests: int = 1024
    max_queued_tokens: int = 1_048_576
    watermark_tokens: int = 32
    max_overtakes: int = 16
    seconds_per_page: float = 2e-5
    num_speculative_tokens: int = 0

    @property
    def long_prefill_threshold(self) -> int:
        """Tokens beyond which a prompt is long."""
        if self.long_prefill_token_threshold is not None:
            return self.long_prefill_token_threshold
        return max(1, self.max_num_batched_tokens // 2)
