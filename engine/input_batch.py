"""InputBatch: a ScheduledBatch of ids and ints, turned into the tensors of one step.

Gives every running request a row of the block tables and lays the step's tokens out one request after the other. Null
sequences may follow, which fill a step up to a size: one token, no history, no slot (slot -1, length 0). They store
nothing, and what is computed for them is nobody's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from block_manager.groups import LayerGroup
from engine.block_tables import Array, BlockTables
from engine.prefix_order import PrefixOrder
from engine.prefix_sharing import PrefixBounds, PrefixPlan, PrefixSharing
from engine.step_buffers import StepBuffers, StepSections, StepShape, TableChanges
from kernels.attention import AttentionMetadata, LastRows, SharedPrefix
from scheduler.batch import ScheduledBatch, ScheduledRequest

NULL_SLOT = -1
LEAST_IDLE_TOKENS = 16  # for whose sake a step's last layer is computed for the others alone


@dataclass(frozen=True, slots=True)
class StepTensors:
    """What the model needs: int64 ``token_ids`` and ``positions`` [num_tokens], int64 ``logits_rows`` [num_draws].

    ``metadata[group][column]`` is the layout for the layers of that column. ``last``: the tokens of ``logits_rows``,
    where they are so few that the last layer should be computed for no others; ``draws_all``: they are all tokens, in
    their order. All of it is valid until the next step is prepared.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    logits_rows: torch.Tensor
    metadata: tuple[tuple[AttentionMetadata, ...], ...]
    last: LastRows | None = None
    draws_all: bool = False


@dataclass(frozen=True, slots=True)
class FilledStep:
    """A step that was written to the host's buffers, and its largest lengths, which kernels take as plain ints.

    ``prefix``: the largest lengths of what its decodes share, where they do. ``last_counts``: from how many of its last
    tokens each sequence draws, where that says all of the draws.
    """

    shape: StepShape
    host: StepSections[Array]
    max_query_len: int
    max_seq_len: int
    prefix: PrefixBounds | None = None
    last_counts: Array | None = None


class InputBatch:
    """Steps of up to ``max_num_seqs`` requests of up to ``max_model_len`` tokens.

    ``min_rows``: tokens of no sequence, and repeated draws, fill up any step, and any draw, of fewer rows. ``buffers``:
    those that send to a device with a memory of its own; without, all tensors are the host's.
    """

    def __init__(
        self,
        groups: Sequence[LayerGroup],
        block_size: int,
        max_num_seqs: int,
        max_model_len: int,
        device: torch.device,
        *,
        min_rows: int = 1,
        buffers: StepBuffers | None = None,
    ) -> None:
        self._groups = tuple(groups)
        self._block_size = block_size
        self._min_rows = min_rows
        self.max_model_len = max_model_len
        num_blocks = -(-max_model_len // block_size)
        self._tables = BlockTables(groups, max_num_seqs, num_blocks, None if buffers is None else device)
        self._buffers = buffers or StepBuffers(self._tables.num_columns)
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))

    def prepare(self, batch: ScheduledBatch) -> StepTensors:
        """Bring the tables up to date and lay out the step.

        One row of logits for every sequence that draws, in the order of the requests; before it, one for each draft.
        """
        step = self.fill(batch)
        self.send(step)
        return self.tensors(step)

    @property
    def prefix_order(self) -> PrefixOrder | None:
        """Of the rows of the block tables; None where no layer sees everything, or all tensors are the host's."""
        return self._tables.prefix_order

    def fill(self, batch: ScheduledBatch, num_seqs: int = 0, sharing: PrefixSharing | None = None) -> FilledStep:
        """Write the step to the host's buffers, with null sequences and draws up to ``num_seqs`` of either.

        Or without any, but with a shared prefix, where that is better by ``sharing``.
        """
        for request_id in batch.released:
            row = self._row_of.pop(request_id, None)
            if row is not None:
                self._free_rows.append(row)
        requests = batch.requests
        rows = np.array([self._update_row(request) for request in requests], dtype=np.int64)
        counts = np.array([len(request.token_ids) for request in requests], dtype=np.int64)
        computed = np.array([request.num_computed_tokens for request in requests], dtype=np.int64)
        seq_lens = computed + counts
        plan = None if sharing is None else sharing.plan(rows, counts, seq_lens, is_recorded=num_seqs > 0)
        if plan is not None:
            num_seqs = 0
        drawing = [row for row, request in enumerate(requests) if request.samples for _ in request.sequence_ids]
        num_drafts = [requests[row].num_drafts for row in drawing]
        num_tokens, num_real, num_draws = int(counts.sum()), len(requests), len(drawing) + sum(num_drafts)
        null_seqs = max(num_seqs - num_real, 0)
        shape = StepShape(
            max(num_tokens + null_seqs, self._min_rows),
            num_real + null_seqs,
            max(num_seqs, num_draws, self._min_rows) if drawing else num_seqs,
            *((0, 0) if plan is None else (len(plan.group_starts) - 1, len(plan.members))),
        )

        host = self._buffers.host(shape)
        host.token_ids[:num_tokens] = (
            [request.token_ids[0] for request in requests]
            if num_tokens == num_real
            else [token for request in requests for token in request.token_ids]
        )
        host.table_rows[:num_real] = rows
        starts = host.query_start_loc
        starts[0] = 0
        starts[1 : num_real + 1] = counts
        np.cumsum(starts[: num_real + 1], out=starts[: num_real + 1])
        host.seq_lens[:num_real] = seq_lens
        positions, token_rows = host.positions[:num_tokens], host.table_rows[:num_real]
        if num_tokens == num_real:
            positions[:] = computed
        else:
            positions[:] = np.arange(num_tokens)
            positions -= np.repeat(starts[:num_real] - computed, counts)
            token_rows = np.repeat(token_rows, counts)
        blocks, offsets = np.divmod(positions, self._block_size)
        slots = host.slots[:, :num_tokens]
        np.multiply(self._tables.lookup(token_rows, blocks), self._block_size, out=slots, dtype=np.int64)
        slots += offsets
        newest = starts[1:][drawing] - 1
        host.logits_rows[:num_draws] = _with_drafts(newest, num_drafts) if any(num_drafts) else newest
        _pad(host, num_tokens, num_real, num_draws)
        _fill_prefix(host, plan)
        return FilledStep(
            shape,
            host,
            int(counts.max(initial=1)),
            int(seq_lens.max(initial=0)),
            None if plan is None else plan.bounds,
            _last_counts(requests) if self._tables.device is None and self._min_rows == 1 else None,
        )

    def fill_null(self, shape: StepShape) -> FilledStep:
        """A step of null sequences alone, the first of which takes all tokens that the others leave, at full length.

        A group that the shape has, one at most, shares nothing at full length.
        """
        host = self._buffers.host(shape)
        host.query_start_loc[0] = 0
        _pad(host, 0, 0, 0)
        host.query_start_loc[1:] += shape.num_tokens - shape.num_seqs
        plan = None
        if shape.num_groups:
            plan = PrefixPlan(
                np.arange(shape.num_seqs - shape.num_members, shape.num_seqs),
                np.array([0, shape.num_members]),
                np.zeros(shape.num_seqs),
                PrefixBounds(shape.num_members, self.max_model_len, self.max_model_len),
            )
        _fill_prefix(host, plan)
        return FilledStep(
            shape,
            host,
            shape.num_tokens - shape.num_seqs + 1,
            self.max_model_len,
            None if plan is None else plan.bounds,
        )

    def send(self, step: FilledStep) -> None:
        """Bring the device up to date with what was filled: the step's own numbers and what changed in the tables.

        One copy, but where a step brings more new blocks than the buffers hold: those go before it.
        """
        changes = self._tables.take_changes()
        if changes is not None and len(changes.indices) > self._buffers.num_changes:
            self._tables.apply(
                TableChanges(
                    *(torch.from_numpy(part).to(self._tables.device) for part in (changes.indices, changes.values))
                )
            )
            changes = None
        sent = self._buffers.send(step.shape, changes)
        if sent is not None:
            self._tables.apply(sent)

    def sections(self, shape: StepShape) -> StepSections[torch.Tensor]:
        """The device's view of a step of this shape."""
        return self._buffers.device(shape)

    def tensors(self, step: FilledStep) -> StepTensors:
        """The tensors of the step that was sent last."""
        device = self._buffers.device(step.shape)
        block_tables = self._tables.of_rows(device.table_rows, -(-step.max_seq_len // self._block_size))
        shared_prefix = None
        if device.prefix is not None and step.prefix is not None:
            shared_prefix = SharedPrefix(
                members=device.prefix.members,
                group_starts=device.prefix.group_starts,
                prefix_lens=device.prefix.prefix_lens,
                largest_group=step.prefix.largest_group,
                max_prefix_len=step.prefix.max_prefix_len,
                max_own_len=step.prefix.max_own_len,
            )

        def metadata(group: int, number: int) -> AttentionMetadata:
            column = self._tables.column(group, number)
            return AttentionMetadata(
                query_start_loc=device.query_start_loc,
                seq_lens=device.seq_lens,
                block_table=block_tables[column],
                slot_mapping=device.slots[column],
                max_query_len=step.max_query_len,
                max_seq_len=step.max_seq_len,
                shared_prefix=shared_prefix if self._groups[group].window is None else None,
            )

        last = None
        if step.last_counts is not None and step.shape.num_tokens - step.shape.num_draws >= LEAST_IDLE_TOKENS:
            starts = np.zeros(len(step.last_counts) + 1, dtype=np.int32)
            np.cumsum(step.last_counts, out=starts[1:])
            last = LastRows(device.logits_rows, torch.from_numpy(starts), int(step.last_counts.max()))
        return StepTensors(
            token_ids=device.token_ids,
            positions=device.positions,
            logits_rows=device.logits_rows,
            metadata=tuple(
                tuple(metadata(index, number) for number in range(group.pages_per_block))
                for index, group in enumerate(self._groups)
            ),
            last=last,
            draws_all=step.last_counts is not None and step.shape.num_draws == step.shape.num_tokens,
        )

    def _update_row(self, request: ScheduledRequest) -> int:
        row = self._row_of.get(request.request_id)
        if row is None:
            row = self._row_of[request.request_id] = self._free_rows.pop()
        if request.new_blocks.pages:
            self._tables.write(row, request.new_blocks)
        return row


def _fill_prefix(host: StepSections[Array], plan: PrefixPlan | None) -> None:
    if host.prefix is not None and plan is not None:
        host.prefix.members[:] = plan.members
        host.prefix.group_starts[:] = plan.group_starts
        host.prefix.prefix_lens[:] = plan.prefix_lens


def _last_counts(requests: Sequence[ScheduledRequest]) -> Array | None:
    """From how many of its last tokens each request draws; None where it draws several times from one."""
    if any(request.samples and len(request.sequence_ids) != 1 for request in requests):
        return None
    return np.array([request.num_drafts + 1 if request.samples else 0 for request in requests])


def _with_drafts(newest: Array, num_drafts: Sequence[int]) -> Array:
    """The rows of the tokens that draw: each of ``newest``, after so many before it as there are drafts."""
    counts = np.array(num_drafts) + 1
    return np.repeat(newest - np.cumsum(counts), counts) + np.arange(1, counts.sum() + 1)


def _pad(host: StepSections[Array], num_tokens: int, num_seqs: int, num_draws: int) -> None:
    """Null sequences of one token after the real ones; the draws that are left repeat the first row."""
    if len(host.token_ids) > num_tokens:
        host.token_ids[num_tokens:] = 0
        host.positions[num_tokens:] = 0
        host.slots[:, num_tokens:] = NULL_SLOT
    if len(host.seq_lens) > num_seqs:
        host.seq_lens[num_seqs:] = 0
        host.table_rows[num_seqs:] = 0
        host.query_start_loc[num_seqs + 1 :] = np.arange(num_tokens + 1, num_tokens + 1 + len(host.seq_lens) - num_seqs)
    host.logits_rows[num_draws:] = 0
