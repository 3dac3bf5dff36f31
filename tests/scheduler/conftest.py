"""A model-free engine around the scheduler, which checks after every step what must always hold."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import pytest

from block_manager.block import NULL_PAGE
from block_manager.groups import plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager
from block_manager.transfers import Transfer, TransferKind
from scheduler.batch import PLACEHOLDER, ScheduledBatch, ScheduledRequest
from scheduler.config import SchedulerConfig
from scheduler.output import TokenOutput
from scheduler.policy import Policy
from scheduler.refusal import Refusal
from scheduler.request import FinishReason, Request, RequestStatus
from scheduler.scheduler import Scheduler


def next_token(request_id: str, position: int) -> int:
    """The fake model: the token of ``request_id`` at ``position``, between 1 and 1000."""
    return 1 + zlib.crc32(f"{request_id}:{position}".encode()) % 1000


class Simulation:
    """Runs a scheduler to the end.

    ``depth`` steps may be under way when the next one is scheduled. ``read_pages`` also checks every content that a
    step reads (slow: small runs).
    """

    def __init__(
        self,
        *,
        num_pages: int,
        windows: Sequence[int | None] = (None,),
        max_num_seqs: int = 8,
        budget: int = 32,
        block_size: int = 16,
        caching: bool = True,
        read_pages: bool = False,
        num_host_pages: int = 0,
        depth: int = 0,
        policy: Policy | None = None,
        next_token: Callable[[str, int], int] = next_token,
        **limits: object,
    ) -> None:
        self.now = 0.0
        self.blocks = BlockManager(
            plan_groups(windows),
            num_pages,
            block_size,
            enable_prefix_caching=caching,
            num_host_pages=num_host_pages,
            clock=self.clock,
        )
        limits.setdefault("watermark_tokens", block_size)
        config = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, **limits)
        self.scheduler = Scheduler(config, self.blocks, policy, clock=self.clock)
        self.next_token = next_token
        self.read_pages = read_pages
        self.depth = depth
        self.under_way: list[ScheduledBatch] = []
        self.requests: dict[str, Request] = {}
        self.prompts: dict[str, list[int]] = {}
        self.outputs: dict[str, list[int]] = {}
        self.reasons: dict[str, FinishReason] = {}
        self.refusals: dict[str, Refusal] = {}
        self.steps = 0
        self._rows: set[str] = set()  # what a runner keeps: tables admitted and not yet released
        self._tables: dict[int, list[list[tuple[int, ...]]]] = {}  # by turn
        self._histories: dict[int, list[int]] = {}  # by turn: the tokens that a runner knows
        self._reached: dict[int, int] = {}  # by turn: positions scheduled
        self._contents: dict[tuple[int, int], tuple[object, ...]] = {}
        self._host_contents: dict[tuple[int, int], tuple[object, ...]] = {}

    def clock(self) -> float:
        """Seconds, which pass only where a test says so."""
        return self.now

    # ---- requests

    def add(
        self,
        request_id: str,
        prompt: int | list[int],
        max_tokens: int,
        *,
        eos: Sequence[int] = (),
        stop: Sequence[int] = (),
        salt: str = "",
        num_samples: int = 1,
        **fields: object,
    ) -> Request:
        """Queue a request; a prompt given by its length has tokens of its own."""
        token_ids = (
            [next_token(f"prompt of {request_id}", i) for i in range(prompt)] if isinstance(prompt, int) else prompt
        )
        names = [request_id, *(f"{request_id}/{number}" for number in range(1, num_samples))]
        request, *children = [
            Request(
                request_id=name,
                token_ids=list(token_ids),
                max_tokens=max_tokens,
                eos_token_ids=frozenset(eos),
                stop_token_ids=frozenset(stop),
                block_hashes=BlockHashes(self.blocks.block_size, salt),
                **fields,
            )
            for name in names
        ]
        request.children = children
        self.scheduler.add(request)
        for member in (request, *children):
            self.requests[member.request_id] = member
            self.prompts[member.request_id] = list(token_ids)
            self.outputs[member.request_id] = []
            self.reasons.pop(member.request_id, None)
        return request

    def abort(self, request_id: str) -> bool:
        """Whether the request was still there to be aborted."""
        known = self.scheduler.finish(request_id) is not None
        if known:
            self._end(self.requests[request_id], FinishReason.ABORT)
        self.check()
        return known

    @property
    def running(self) -> list[str]:
        return [request.request_id for request in self.scheduler.running]

    @property
    def waiting(self) -> list[str]:
        return [request.request_id for request in self.scheduler.waiting]

    # ---- steps

    def schedule(self) -> ScheduledBatch:
        """Schedule a step, which is under way from here on, and check it."""
        preemptions = self.scheduler.counters.num_preemptions
        running = set(self.running)
        batch = self.scheduler.schedule()
        for refusal in self.scheduler.take_refusals():
            self.refusals[refusal.request_id] = refusal
            self._end(self.requests[refusal.request_id], FinishReason.ERROR)
        self._check_batch(batch, running, preempted=self.scheduler.counters.num_preemptions > preemptions)
        if batch:
            self.under_way.append(batch)
        return batch

    def finish_step(self) -> list[TokenOutput]:
        """What the runner and the engine do with the oldest step under way."""
        batch = self.under_way.pop(0)
        self._carry_out(batch.transfers)
        sampled, num_accepted = {}, {}
        for share in batch.requests:
            self._write_and_read(share)
            if share.samples:
                first = share.output_index
                for draft in share.drafts:
                    if draft != self.next_token(share.request_id, len(self.prompts[share.request_id]) + first):
                        break
                    first += 1
                accepted = num_accepted[share.request_id] = first - share.output_index
                for name in share.sequence_ids:
                    sampled[name] = self.next_token(name, len(self.prompts[name]) + first)
                self._histories[share.turn] += [*share.drafts[:accepted], sampled[share.request_id]]
                self._reached[share.turn] -= share.num_drafts - accepted
        outputs = self.scheduler.update(batch, sampled, num_accepted)
        for output in outputs:
            request = output.request
            assert request.request_id not in self.reasons, "a token after the end"
            if output.token_id is not None:
                self.outputs[request.request_id] += [*output.accepted, output.token_id]
            if output.finish_reason is not None:
                self._end(request, output.finish_reason)
        self.steps += 1
        self.check()
        return outputs

    def fail_step(self) -> list[str]:
        """The oldest step under way fails before it has moved or computed anything; who ended."""
        batch = self.under_way.pop(0)
        for transfer in batch.transfers:
            contents = self._host_contents if transfer.kind is TransferKind.OUT else self._contents
            for page in transfer.targets:
                for offset in range(self.blocks.block_size):
                    contents.pop((page, offset), None)
        ended = [request.request_id for request in self.scheduler.fail(batch)]
        for name in ended:
            self._end(self.requests[name], FinishReason.ERROR)
        self.check()
        return ended

    def step(self) -> ScheduledBatch:
        """Schedule, then finish the oldest step where enough are under way, or nothing else could run."""
        preemptions = self.scheduler.counters.num_preemptions
        batch = self.schedule()
        if self.under_way:
            if len(self.under_way) > self.depth or not batch:
                self.finish_step()
        else:
            preempted = self.scheduler.counters.num_preemptions > preemptions
            assert preempted or not self.scheduler.has_work, (
                f"nothing can run: running {self.running}, waiting {self.waiting}, {self.blocks.usage()}"
            )
        return batch

    def run(self, limit: int = 100_000) -> None:
        """Step until nothing is left, which takes at most ``limit`` steps."""
        while self.scheduler.has_work or self.under_way:
            assert limit > 0, "no end in sight"
            self.step()
            limit -= 1
        self.check_idle()

    # ---- what must hold

    def check(self) -> None:
        """After every step: pages, states, and who is where."""
        assert self.blocks.audit() == []
        scheduler = self.scheduler
        assert sum(len(request.family) for request in scheduler.running) <= scheduler.config.max_num_seqs
        assert not set(self.running) & set(self.waiting)
        pending = {name for name, one in self.requests.items() if one.status is RequestStatus.PENDING}
        assert set(self.running) | set(self.waiting) | pending == self.requests.keys() - self.reasons.keys()
        assert {request.status for request in scheduler.running} <= {RequestStatus.RUNNING}
        assert {request.status for request in scheduler.waiting} <= {RequestStatus.WAITING}
        assert set(self.blocks.sequences) == set(self.running) | self.leaving()
        assert set(self.blocks.swapped) <= set(self.waiting)

    def leaving(self) -> set[str]:
        """Requests that run no more, and whose pages a step under way reads."""
        running = {(request.request_id, request.turn) for request in self.scheduler.running}
        shares = {(share.request_id, share.turn) for batch in self.under_way for share in batch.requests}
        return {request_id for request_id, _ in shares - running}

    def check_idle(self) -> None:
        """PAGES0: nothing runs or waits, and every page is free or cached."""
        assert not self.scheduler.has_work
        assert not self.under_way
        assert self.running == self.waiting == []
        assert self.scheduler.waiting.num_tokens == 0
        assert not self.scheduler.running.reserving
        assert not self.blocks.swapped
        usage = self.blocks.usage()
        assert usage.held == 0
        assert usage.free + usage.cached == usage.total
        by_tenant: dict[str, float] = {}
        for request in self.requests.values():
            by_tenant[request.tenant] = by_tenant.get(request.tenant, 0.0) + request.ledger.page_seconds
        assert self.scheduler.counters.tenant_page_seconds == pytest.approx(by_tenant)

    def undisturbed(self, request_id: str, count: int) -> list[int]:
        """The first ``count`` tokens that the fake model gives ``request_id`` when it runs alone."""
        start = len(self.prompts[request_id])
        return [self.next_token(request_id, start + i) for i in range(count)]

    def _end(self, request: Request, reason: FinishReason) -> None:
        name = request.request_id
        assert name not in self.reasons, "ended twice"
        assert request.status is RequestStatus.FINISHED
        if not request.ledger.rotations:
            assert request.token_ids == self.prompts[name] + self.outputs[name]
        assert self.outputs[name] == self.undisturbed(name, len(self.outputs[name]))
        self.reasons[name] = reason
        phases = [seconds for seconds in request.ledger.phases.seconds(self.now) if seconds is not None]
        assert sum(phases) == pytest.approx(self.now - request.arrived)
        assert min(phases) >= 0.0

    def _check_batch(self, batch: ScheduledBatch, running: set[str], *, preempted: bool) -> None:
        assert batch.num_tokens <= self.scheduler.config.max_num_batched_tokens
        assert not (preempted and self.under_way), "pages were taken that a step under way reads"
        if not batch:
            assert batch.released == batch.transfers == ()
            return
        assert len(set(batch.released)) == len(batch.released)
        assert set(batch.released) <= self._rows, "released, but never shown or released before"
        self._rows -= set(batch.released)
        names = [share.request_id for share in batch.requests]
        assert len(set(names)) == len(names)
        for share in batch.requests:
            self._show_tables(share)
            assert share.admitted == (share.request_id not in self._rows)
            assert not preempted or not share.admitted or share.request_id in running, "admitted while pages are short"
            self._check_share(share)
        self._rows |= set(names)
        shown = {request.request_id for request in self.scheduler.running if not request.is_new_table}
        assert self._rows == shown, "a runner keeps rows of exactly what runs"
        assert len(self._rows) <= self.scheduler.config.max_num_seqs

    def _check_share(self, share: ScheduledRequest) -> None:
        """It goes on where the share before it ended, with tokens that are known or drawn by then."""
        request = self.requests[share.request_id]
        assert share.turn == request.turn
        assert share.num_tokens >= 1
        assert share.num_tokens <= request.chunk_limit
        if share.admitted:
            assert share.turn not in self._reached
            self._histories[share.turn] = list(request.token_ids)
            self._reached[share.turn] = request.num_computed_tokens
        earlier = [one for batch in self.under_way for one in batch.requests if one.turn == share.turn]
        expected = request.num_tokens + sum(one.samples for one in earlier)
        end = share.num_computed_tokens + share.num_tokens
        assert share.num_computed_tokens == self._reached[share.turn]
        self._reached[share.turn] = end
        end_known = end - share.num_drafts
        known = request.token_ids[share.num_computed_tokens : end_known]
        assert [*share.token_ids[: share.num_tokens - share.num_drafts]] in (known, [*known, PLACEHOLDER])
        assert not share.num_drafts or (share.samples and len(known) == len(share.sequence_ids) == 1)
        if end_known - share.num_computed_tokens > len(known):
            assert request.draws_ahead, "a draw depends on a token that is not known"
            assert earlier[-1].samples, "the token before it is drawn by nobody"
        assert end <= request.longest
        assert share.samples == (end_known == expected and request.max_tokens > 0)
        assert share.output_index == request.num_output_tokens + expected - request.num_tokens
        assert share.sequence_ids == tuple(member.request_id for member in request.family)
        assert all(len(table) * self.blocks.block_size >= end for table in self._tables[share.turn])

    def _show_tables(self, share: ScheduledRequest) -> None:
        """Keep block tables as a runner does: each share brings only what may be new."""
        first, pages = share.new_blocks
        tables = self._tables.setdefault(share.turn, [[] for _ in self.blocks.groups])
        assert first == 0 or not share.admitted
        for table, new in zip(tables, pages, strict=bool(pages)):
            assert len(table) >= first
            table[first:] = new

    def _carry_out(self, transfers: Sequence[Transfer]) -> None:
        """Move contents between pages, one transfer after the other."""
        if not self.read_pages:
            return
        size, device, host = self.blocks.block_size, self._contents, self._host_contents
        ends = {
            TransferKind.COPY: (device, device),
            TransferKind.OUT: (device, host),
            TransferKind.IN: (host, device),
        }
        for transfer in transfers:
            source, target = ends[transfer.kind]
            for old, new in zip(transfer.sources, transfer.targets, strict=True):
                for offset in range(size):
                    target.pop((new, offset), None)
                    if (old, offset) in source:
                        target[new, offset] = source[old, offset]

    def _write_and_read(self, share: ScheduledRequest) -> None:
        """Store each position's identity in its page, then read what the step's attention sees."""
        request = self.requests[share.request_id]
        if request.turn != share.turn or request.status is not RequestStatus.RUNNING:
            return  # nobody reads what it computes
        start, end = share.num_computed_tokens, share.num_computed_tokens + share.num_tokens
        tokens = [*self._histories[share.turn][: end - share.num_drafts], *share.drafts]
        assert len(tokens) == end
        assert tokens[start:end] == [tokens[end - 1] if one == PLACEHOLDER else one for one in share.token_ids]
        if not self.read_pages:
            return
        size = self.blocks.block_size
        for index, (group, table) in enumerate(zip(self.blocks.groups, self._tables[share.turn], strict=True)):
            oldest = 0 if group.window is None else max(0, start - group.window + 1)
            for column in range(group.pages_per_block):
                for position in range(oldest, end):
                    page, offset = table[position // size][column], position % size
                    identity = (index, column, tuple(tokens[: position + 1]))
                    assert page != NULL_PAGE
                    if position >= start:
                        self._contents[page, offset] = identity
                    assert self._contents[page, offset] == identity, f"{share.request_id} reads another's page"


@pytest.fixture(scope="session")
def simulate() -> type[Simulation]:
    """The simulation, to be made with a pool and a budget."""
    return Simulation


def make(request_id: str, prompt: int = 1, max_tokens: int = 1, *, block_size: int = 16, **fields: object) -> Request:
    """A request that no scheduler knows; ``key``, ``lane``, ``order`` and the like may be given."""
    return Request(
        request_id=request_id,
        token_ids=[next_token(f"prompt of {request_id}", i) for i in range(prompt)],
        max_tokens=max_tokens,
        eos_token_ids=frozenset(),
        stop_token_ids=frozenset(),
        block_hashes=BlockHashes(block_size),
        **fields,
    )


@pytest.fixture(scope="session")
def make_request() -> Callable[..., Request]:
    """Makes requests for parts of the scheduler."""
    return make
