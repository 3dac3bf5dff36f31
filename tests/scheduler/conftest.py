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
from scheduler.batch import ScheduledBatch, ScheduledRequest
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
    """Runs a scheduler to the end. ``read_pages`` also checks every content that a step reads (slow: small runs)."""

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
        self.requests: dict[str, Request] = {}
        self.prompts: dict[str, list[int]] = {}
        self.outputs: dict[str, list[int]] = {}
        self.reasons: dict[str, FinishReason] = {}
        self.refusals: dict[str, Refusal] = {}
        self.steps = 0
        self._rows: set[str] = set()  # what a runner keeps: tables admitted and not yet released
        self._tables: dict[str, list[list[tuple[int, ...]]]] = {}
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
        """Schedule a step and check it."""
        preemptions = self.scheduler.counters.num_preemptions
        batch = self.scheduler.schedule()
        for refusal in self.scheduler.take_refusals():
            self.refusals[refusal.request_id] = refusal
            self._end(self.requests[refusal.request_id], FinishReason.ERROR)
        self._check_batch(batch, preempted=self.scheduler.counters.num_preemptions > preemptions)
        return batch

    def finish_step(self, batch: ScheduledBatch) -> list[TokenOutput]:
        """What the runner and the engine do with a batch."""
        self._carry_out(batch.transfers)
        for share in batch.requests:
            self._write_and_read(share)
        sampled = {
            name: self.next_token(name, share.num_computed_tokens + share.num_tokens)
            for share in batch.requests
            if share.samples
            for name in share.sequence_ids
        }
        outputs = self.scheduler.update(batch, sampled)
        for output in outputs:
            request = output.request
            assert request.request_id not in self.reasons, "a token after the end"
            self.outputs[request.request_id].append(output.token_id)
            if output.finish_reason is not None:
                self._end(request, output.finish_reason)
        self.steps += 1
        self.check()
        return outputs

    def step(self) -> ScheduledBatch:
        batch = self.schedule()
        assert batch, f"nothing can run: running {self.running}, waiting {self.waiting}, {self.blocks.usage()}"
        self.finish_step(batch)
        return batch

    def run(self, limit: int = 100_000) -> None:
        """Step until nothing is left, which takes at most ``limit`` steps."""
        while self.scheduler.has_work:
            assert limit > 0, "no end in sight"
            self.step()
            limit -= 1
        self.check_idle()

    # ---- what must hold

    def check(self) -> None:
        """After every step: pages, states, and who is where."""
        assert self.blocks.audit() == []
        scheduler = self.scheduler
        assert len(scheduler.running) <= scheduler.config.max_num_seqs
        assert not set(self.running) & set(self.waiting)
        pending = {name for name, one in self.requests.items() if one.status is RequestStatus.PENDING}
        assert set(self.running) | set(self.waiting) | pending == self.requests.keys() - self.reasons.keys()
        assert {request.status for request in scheduler.running} <= {RequestStatus.RUNNING}
        assert {request.status for request in scheduler.waiting} <= {RequestStatus.WAITING}
        assert set(self.blocks.sequences) == set(self.running)

    def check_idle(self) -> None:
        """PAGES0: nothing runs or waits, and every page is free or cached."""
        assert not self.scheduler.has_work
        assert self.running == self.waiting == []
        usage = self.blocks.usage()
        assert usage.held == 0
        assert usage.free + usage.cached == usage.total

    def undisturbed(self, request_id: str, count: int) -> list[int]:
        """The first ``count`` tokens that the fake model gives ``request_id`` when it runs alone."""
        start = len(self.prompts[request_id])
        return [self.next_token(request_id, start + i) for i in range(count)]

    def _end(self, request: Request, reason: FinishReason) -> None:
        name = request.request_id
        assert name not in self.reasons, "ended twice"
        assert request.status is RequestStatus.FINISHED
        assert request.token_ids == self.prompts[name] + self.outputs[name]
        assert self.outputs[name] == self.undisturbed(name, len(self.outputs[name]))
        self.reasons[name] = reason

    def _check_batch(self, batch: ScheduledBatch, *, preempted: bool) -> None:
        assert batch.num_tokens <= self.scheduler.config.max_num_batched_tokens
        if not batch:
            assert batch.released == ()
            return
        assert len(set(batch.released)) == len(batch.released)
        assert set(batch.released) <= self._rows, "released, but never shown or released before"
        self._rows -= set(batch.released)
        for name in batch.released:
            del self._tables[name]
        names = [share.request_id for share in batch.requests]
        assert len(set(names)) == len(names)
        for share in batch.requests:
            self._show_tables(share)
            assert share.admitted == (share.request_id not in self._rows)
            assert not (share.admitted and preempted), "admitted in a step that preempted"
            assert share.num_tokens >= 1
            request = self.requests[share.request_id]
            end = share.num_computed_tokens + share.num_tokens
            assert share.num_computed_tokens == request.num_computed_tokens
            assert share.token_ids == request.token_ids[share.num_computed_tokens : end]
            assert share.samples == (end == request.num_tokens)
            assert all(len(table) * self.blocks.block_size >= end for table in self._tables[share.request_id])
        self._rows |= set(names)
        assert self._rows == set(self.running), "a runner keeps rows of exactly what runs"

    def _show_tables(self, share: ScheduledRequest) -> None:
        """Keep block tables as a runner does: each share brings only what may be new."""
        first, pages = share.new_blocks
        tables = self._tables.setdefault(share.request_id, [[] for _ in self.blocks.groups])
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
        if not self.read_pages:
            return
        size = self.blocks.block_size
        tokens = self.requests[share.request_id].token_ids
        start, end = share.num_computed_tokens, share.num_computed_tokens + share.num_tokens
        for index, (group, table) in enumerate(zip(self.blocks.groups, self._tables[share.request_id], strict=True)):
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
