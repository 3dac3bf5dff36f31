"""Request: one sequence on its way through the scheduler.

    add -> WAITING -> RUNNING -> FINISHED
              ^          |
              +----------+  preempted: pages given back or swapped out, tokens kept

    PENDING -> RUNNING      a child that waits for its parent's prompt, then shares its pages

A request catches up: it has ``token_ids`` (prompt, then what was sampled) and ``num_computed_tokens`` of them are in
pages. There is no prefill phase and no decode phase, only a distance between the two numbers. Where steps are scheduled
ahead, two more numbers run before them:

    num_computed_tokens <= num_scheduled_tokens       steps under way will compute up to here
    num_tokens          <= num_expected_tokens        and draw the tokens between these two
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


class WaitReason(enum.StrEnum):
    """Why a waiting request did not start in the latest step."""

    PAGES = "pages"  # too few are free
    SEQUENCES = "sequences"  # as many run as may
    TOKENS = "tokens"  # the step had no tokens left for it
    PREEMPTION = "preemption"  # somebody was preempted in this step, so nobody starts
    BEHIND = "behind"  # others go first
    GRAMMAR = "grammar"  # it has not come to the scheduler yet: what its output must be is being compiled


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """State of one request, made by whoever submits it; from ``children`` on, the scheduler's own.

    ``max_tokens`` 0 computes the prompt and draws nothing. ``timeout`` and ``queue_timeout`` are seconds from arrival
    to the end, and to the start; None: no limit. ``speculates``: it may have drafts (see `Speculation`).
    ``draws_ahead``: a token may be drawn for it before the one before that is known; else no step is scheduled for an
    expected token. ``reads_prompt``: something is told of each prompt position, until all are computed; so none of them
    is taken from pages that hold it already, but from the request's own, computed before a preemption.
    ``adapter`` is the number of what changes the model for it, 0 for nothing; its ``block_hashes`` must say so too.
    ``rotates``: at the end of the context, drop the middle of the tokens and go on (see `rotate`). ``children`` are
    further samples of the same prompt, until it is computed and they run beside this request.

    ``longest`` is the most tokens it ever has to have computed, and ``chunk_limit`` bounds the tokens of one step, so
    that it fits the pool alone. ``lane``, ``key`` and ``order`` are its place in the policy's order. ``turn`` numbers
    its latest admission. ``reserved_tokens``: pages up to that length are kept for it while it runs.
    """

    request_id: str
    token_ids: list[int]
    max_tokens: int
    eos_token_ids: frozenset[int]
    stop_token_ids: frozenset[int]
    block_hashes: BlockHashes
    rotates: bool = False
    priority: int = 0
    tenant: str = ""
    timeout: float | None = None
    queue_timeout: float | None = None
    speculates: bool = True
    draws_ahead: bool = True
    reads_prompt: bool = False
    adapter: int = 0
    children: list[Request] = field(default_factory=list)

    parent: Request | None = None
    arrived: float = 0.0
    started: float | None = None
    lane: str = ""
    key: float = 0.0
    order: int = 0
    longest: int = 0
    chunk_limit: int = 0
    turn: int = 0
    status: RequestStatus = RequestStatus.WAITING
    wanted_pages: int = 0  # as of the latest refusal for want of pages
    num_overtakers: int = 0  # requests that started while this one was first and wanted pages
    own_ids: tuple[str, ...] = field(init=False)  # of the sequences that it draws for when it has no children
    num_prompt_tokens: int = field(init=False)
    num_dropped_tokens: int = 0
    num_computed_tokens: int = 0
    num_scheduled_tokens: int = 0
    num_expected_tokens: int = field(init=False)
    num_steps_under_way: int = 0
    num_cached_tokens: int | None = None  # prompt tokens read from pages at first admission
    reserved_tokens: int = 0
    high_water: int = 0  # most tokens ever computed: what lies below and is computed again is recomputation
    is_new_table: bool = True  # nobody has read its block tables since it began to run
    ledger: RequestLedger = field(default_factory=RequestLedger)

    def __post_init__(self) -> None:
        self.own_ids = (self.request_id,)
        self.num_prompt_tokens = self.num_expected_tokens = len(self.token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens known and not dropped: prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) + self.num_dropped_tokens - self.num_prompt_tokens

    @property
    def num_tokens_to_schedule(self) -> int:
        """Tokens that no step has been scheduled for, of those that ever have to be computed."""
        expected = self.num_expected_tokens if self.draws_ahead else len(self.token_ids)
        return (expected if expected < self.longest else self.longest) - self.num_scheduled_tokens

    @property
    def num_preemptions(self) -> int:
        return len(self.ledger.preemptions)

    @property
    def holds_reservation(self) -> bool:
        """Whether pages are kept for it that it has not used yet."""
        return self.reserved_tokens >= self.num_expected_tokens

    @property
    def family(self) -> list[Request]:
        """The request, and its children that have not begun to run by themselves."""
        return [self, *self.children]

    def finish_reason(self, newest: int) -> FinishReason | None:
        """Why its ``newest`` token ends the request, if it does. EOS as the last allowed token is a stop, no length."""
        if newest in self.eos_token_ids or newest in self.stop_token_ids:
            return FinishReason.STOP
        if len(self.token_ids) + self.num_dropped_tokens - self.num_prompt_tokens >= self.max_tokens:
            return FinishReason.LENGTH
        return None

    def advance(self, start: int, num_computed_tokens: int) -> int:
        """A step has computed the tokens from ``start`` on; how many of them had been computed before."""
        self.num_computed_tokens = num_computed_tokens
        recomputed = max(0, min(self.high_water, num_computed_tokens) - start)
        self.ledger.recomputed_tokens += recomputed
        if num_computed_tokens > self.high_water:
            self.high_water = num_computed_tokens
            if num_computed_tokens >= self.num_prompt_tokens:
                self.reads_prompt = False
        return recomputed

    def restart(self, num_computed_tokens: int) -> None:
        """Go on from ``num_computed_tokens`` tokens in pages; no step is under way."""
        self.num_computed_tokens = self.num_scheduled_tokens = num_computed_tokens
        self.num_expected_tokens = len(self.token_ids)

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
        self.restart(0)
        self.high_water = 0
        self.block_hashes.truncate(keep_first)
        self.block_hashes.extend(self.token_ids)
        self.ledger.rotations += 1
