"""Request: one sequence on its way through the scheduler.

    add -> WAITING -> RUNNING -> FINISHED
              ^          |
              +----------+  preempted: pages given back or swapped out, tokens kept

    PENDING -> RUNNING      a child that waits for its parent's prompt, then shares its pages

A request catches up: it has ``token_ids`` (prompt, then what was sampled) and ``num_computed_tokens`` of them are in
pages. There is no prefill phase and no decode phase, only a distance between the two numbers.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from block_manager.hashing import BlockHashes
from scheduler.ledger import RequestLedger


class RequestStatus(enum.Enum):
    PENDING = "pending"
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
    """State of one request. ``chunk_limit`` bounds the tokens of one step, so that the request fits the pool alone.

    ``children`` are further samples of the same prompt, until it is computed and they run beside this request.
    ``rotates``: at the end of the context, drop the middle of the tokens and go on (see `rotate`).
    """

    request_id: str
    token_ids: list[int]
    max_tokens: int
    eos_token_ids: frozenset[int]
    stop_token_ids: frozenset[int]
    block_hashes: BlockHashes
    rotates: bool = False
    children: list[Request] = field(default_factory=list)
    chunk_limit: int = 0
    num_prompt_tokens: int = field(init=False)
    num_dropped_tokens: int = 0
    num_computed_tokens: int = 0
    num_cached_tokens: int | None = None  # prompt tokens read from pages at first admission
    num_preemptions: int = 0
    high_water: int = 0  # most tokens ever computed: what lies below and is computed again is recomputation
    is_new_table: bool = True  # nobody has read its block tables since it began to run
    status: RequestStatus = RequestStatus.WAITING
    ledger: RequestLedger = field(default_factory=RequestLedger)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens known and not dropped: prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) + self.num_dropped_tokens - self.num_prompt_tokens

    def finish_reason(self) -> FinishReason | None:
        """Why the newest token ends the request, if it does. EOS as the last allowed token is a stop, not a length."""
        newest = self.token_ids[-1]
        if newest in self.eos_token_ids or newest in self.stop_token_ids:
            return FinishReason.STOP
        if self.num_output_tokens >= self.max_tokens:
            return FinishReason.LENGTH
        return None

    def rotate(self, keep_first: int, keep_last: int) -> None:
        """Drop the middle: what is left, the first and the last tokens, is a text of its own and computed as one.

        Keeping keys and values of the last tokens would be cheaper, but they are full of what was dropped, and a
        request preempted afterwards could not get them back; so the answer would depend on load. The first tokens are
        attention sinks (Xiao et al., 2023), and their pages are found again in the prefix cache.
        """
        dropped = len(self.token_ids) - keep_first - keep_last
        if dropped < 1:
            raise ValueError(f"{len(self.token_ids)} tokens have no middle between {keep_first} and {keep_last}")
        del self.token_ids[keep_first : keep_first + dropped]
        self.num_dropped_tokens += dropped
        self.num_computed_tokens = 0
        self.high_water = 0
        self.block_hashes.truncate(keep_first)
        self.block_hashes.extend(self.token_ids)
        self.ledger.rotations += 1
