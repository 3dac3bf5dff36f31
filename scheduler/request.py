"""Request: one sequence on its way through the scheduler.

    add -> WAITING -> RUNNING -> FINISHED
              ^          |
              +----------+  preempted: pages given back, tokens kept

A request catches up: it has ``token_ids`` (prompt, then what was sampled) and ``num_computed_tokens`` of them are in
pages. There is no prefill phase and no decode phase, only a distance between the two numbers.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from block_manager.hashing import BlockHashes


class RequestStatus(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(enum.StrEnum):
    """How a request ended: exactly one of these, exactly once."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(slots=True, kw_only=True)
class Request:
    """State of one request. ``chunk_limit`` bounds the tokens of one step, so that the request fits the pool alone."""

    request_id: str
    token_ids: list[int]
    max_tokens: int
    eos_token_ids: frozenset[int]
    stop_token_ids: frozenset[int]
    block_hashes: BlockHashes
    chunk_limit: int = 0
    num_prompt_tokens: int = field(init=False)
    num_computed_tokens: int = 0
    num_cached_tokens: int | None = None  # prompt tokens read from pages at first admission
    num_preemptions: int = 0
    high_water: int = 0  # most tokens ever computed: what lies below and is computed again is recomputation
    status: RequestStatus = RequestStatus.WAITING

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens known: prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    def finish_reason(self) -> FinishReason | None:
        """Why the newest token ends the request, if it does. EOS as the last allowed token is a stop, not a length."""
        newest = self.token_ids[-1]
        if newest in self.eos_token_ids or newest in self.stop_token_ids:
            return FinishReason.STOP
        if self.num_output_tokens >= self.max_tokens:
            return FinishReason.LENGTH
        return None
