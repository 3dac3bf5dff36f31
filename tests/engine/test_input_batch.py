"""A step's tensors, against arithmetic done by hand and against tables worked out anew for every step."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from block_manager.block_table import ChangedBlocks
from block_manager.groups import LayerGroup, plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager
from engine.input_batch import InputBatch, StepTensors
from engine.step_buffers import StepShape
from kernels.attention import AttentionMetadata
from scheduler.batch import ScheduledBatch, ScheduledRequest
from scheduler.config import SchedulerConfig
from scheduler.request import Request
from scheduler.scheduler import Scheduler

Table = list[tuple[int, ...]]


def share(
    name: str, token_ids: list[int], computed: int, *tables: Table, samples: bool = True, admitted: bool = True
) -> ScheduledRequest:
    first = 0 if admitted else computed // 4
    return ScheduledRequest(
        request_id=name,
        turn=1,
        token_ids=token_ids,
        num_computed_tokens=computed,
        samples=samples,
        admitted=admitted,
        sequence_ids=(name,),
        output_index=0,
        new_blocks=ChangedBlocks(first, tuple([table[first:] for table in tables])),
    )


def inputs(
    groups: tuple[LayerGroup, ...], *, block_size: int = 4, max_num_seqs: int = 4, longest: int = 64
) -> InputBatch:
    return InputBatch(groups, block_size, max_num_seqs, longest, torch.device("cpu"))


def batch(*requests: ScheduledRequest, released: tuple[str, ...] = ()) -> ScheduledBatch:
    return ScheduledBatch(requests, released)


def only(step: StepTensors) -> AttentionMetadata:
    ((metadata,),) = step.metadata
    return metadata


FULL = plan_groups([None])


def test_a_ragged_mix_of_prefill_chunk_decode_and_last_chunk() -> None:
    step = inputs(FULL).prepare(
        batch(
            share("prefill", [50, 51, 52, 53, 54], 0, [(7,), (3,)], samples=False),
            share("decode", [60], 8, [(1,), (2,), (9,)]),
            share("chunk", [70, 71, 72], 6, [(4,), (5,), (6,)]),
        )
    )
    metadata = only(step)
    assert step.token_ids.tolist() == [50, 51, 52, 53, 54, 60, 70, 71, 72]
    assert step.positions.tolist() == [0, 1, 2, 3, 4, 8, 6, 7, 8]
    assert step.logits_rows.tolist() == [5, 8]
    assert metadata.query_start_loc.tolist() == [0, 5, 6, 9]
    assert metadata.seq_lens.tolist() == [5, 9, 9]
    assert (metadata.max_query_len, metadata.max_seq_len) == (5, 9)
    assert metadata.block_table[0, :2].tolist() == [7, 3]
    assert metadata.block_table[1:].tolist() == [[1, 2, 9], [4, 5, 6]]
    assert metadata.slot_mapping.tolist() == [28, 29, 30, 31, 12, 36, 22, 23, 24]


def test_types_and_shapes_are_those_of_the_contract() -> None:
    step = inputs(FULL).prepare(batch(share("a", [5, 6], 0, [(1,)])))
    metadata = only(step)
    for tensor in (step.token_ids, step.positions, step.logits_rows, metadata.slot_mapping):
        assert tensor.dtype == torch.int64
    for tensor in (metadata.query_start_loc, metadata.seq_lens, metadata.block_table):
        assert tensor.dtype == torch.int32
    assert metadata.block_table.is_contiguous()
    assert metadata.block_table.shape == (1, 1)
    assert isinstance(metadata.max_query_len, int)
    assert isinstance(metadata.max_seq_len, int)


def test_two_groups_and_their_columns_have_tables_of_their_own() -> None:
    groups = plan_groups([6, 6, None])
    assert [group.pages_per_block for group in groups] == [1, 2]
    step = inputs(groups).prepare(batch(share("a", [9, 9], 3, [(1,), (2,)], [(3, 4), (5, 6)])))
    ((full,), (first, second)) = step.metadata
    assert [one.block_table.tolist() for one in (full, first, second)] == [[[1, 2]], [[3, 5]], [[4, 6]]]
    assert [one.slot_mapping.tolist() for one in (full, first, second)] == [[7, 8], [15, 20], [19, 24]]


def test_tables_grow_by_what_is_new_in_each_step() -> None:
    made, table = inputs(FULL), [(5,)]
    made.prepare(batch(share("a", [1, 2, 3, 4], 0, table)))
    table.append((8,))
    step = made.prepare(batch(share("a", [9], 4, table, admitted=False)))
    assert only(step).block_table.tolist() == [[5, 8]]
    assert only(step).slot_mapping.tolist() == [32]
    step = made.prepare(batch(share("a", [9], 5, table, admitted=False)))
    assert only(step).block_table.tolist() == [[5, 8]]
    assert only(step).slot_mapping.tolist() == [33]


def test_a_block_replaced_by_a_copy_is_written_where_the_copy_is() -> None:
    made, table = inputs(FULL), [(5,), (6,)]
    made.prepare(batch(share("a", [1] * 6, 0, table)))
    table[1] = (9,)  # the partly filled last block was shared
    step = made.prepare(batch(share("a", [2], 6, table, admitted=False)))
    assert only(step).block_table.tolist() == [[5, 9]]
    assert only(step).slot_mapping.tolist() == [38]


def test_a_readmitted_request_owes_nothing_to_its_former_table() -> None:
    made = inputs(FULL)
    made.prepare(batch(share("a", [1] * 9, 0, [(5,), (6,), (7,)]), share("b", [1], 0, [(8,)])))
    made.prepare(batch(share("b", [2], 1, [(8,)], admitted=False), released=("a",)))
    step = made.prepare(batch(share("b", [3], 2, [(8,)], admitted=False), share("a", [1] * 6, 4, [(2,), (9,), (1,)])))
    assert only(step).block_table[1].tolist() == [2, 9, 1]
    assert only(step).slot_mapping.tolist() == [34, 36, 37, 38, 39, 4, 5]


def test_a_request_released_and_admitted_in_one_batch_starts_anew() -> None:
    made = inputs(FULL, max_num_seqs=1)
    made.prepare(batch(share("a", [1] * 8, 0, [(5,), (6,)])))
    step = made.prepare(batch(share("a", [1] * 5, 0, [(3,), (4,)]), released=("a",)))
    assert only(step).slot_mapping.tolist() == [12, 13, 14, 15, 16]


def test_rows_are_used_again_and_never_more_than_there_are() -> None:
    made = inputs(FULL, max_num_seqs=2)
    previous: tuple[str, ...] = ()
    for i in range(20):
        names = (f"x{i}", f"y{i}")
        step = made.prepare(batch(*(share(name, [1], 0, [(i + 1,)]) for name in names), released=previous))
        assert only(step).block_table.tolist() == [[i + 1], [i + 1]]
        previous = names
    with pytest.raises(IndexError):
        made.prepare(batch(share("third", [1], 0, [(1,)])))


def test_released_ids_that_never_had_a_row_are_ignored() -> None:
    step = inputs(FULL).prepare(batch(share("a", [1], 0, [(1,)]), released=("stranger",)))
    assert only(step).seq_lens.tolist() == [1]


def test_the_order_of_a_batch_is_the_order_of_its_rows_whatever_rows_were_given_before() -> None:
    made = inputs(FULL)
    made.prepare(batch(*(share(name, [1], 0, [(page,)]) for name, page in (("a", 1), ("b", 2), ("c", 3)))))
    requests = [share(name, [2], 1, [(page,)], admitted=False) for name, page in (("c", 3), ("a", 1))]
    assert only(made.prepare(batch(*requests))).block_table.tolist() == [[3], [1]]


def test_no_row_samples_while_all_are_in_the_middle_of_a_prompt() -> None:
    step = inputs(FULL).prepare(batch(share("a", [1, 2], 0, [(1,)], samples=False)))
    assert step.logits_rows.shape == (0,)
    assert step.logits_rows.dtype == torch.int64


def test_a_sequence_may_fill_the_last_block_of_its_row() -> None:
    table = [(page,) for page in range(1, 17)]
    step = inputs(FULL, longest=63).prepare(batch(share("a", [1] * 63, 0, table)))
    assert only(step).block_table.tolist() == [list(range(1, 17))]
    assert only(step).slot_mapping.tolist() == list(range(4, 67))


def test_null_sequences_fill_a_step_up_to_a_size() -> None:
    made = InputBatch(FULL, 4, 8, 64, torch.device("cpu"))
    filled = made.fill(batch(share("a", [5], 8, [(1,), (2,), (9,)]), share("b", [6], 3, [(4,)])), 5)
    assert filled.shape == StepShape(5, 5, 5)
    step = made.tensors(replace(filled, max_seq_len=64))
    metadata = only(step)
    assert step.token_ids.tolist() == [5, 6, 0, 0, 0]
    assert step.positions.tolist() == [8, 3, 0, 0, 0]
    assert metadata.slot_mapping.tolist() == [36, 19, -1, -1, -1]
    assert metadata.seq_lens.tolist() == [9, 4, 0, 0, 0]
    assert metadata.query_start_loc.tolist() == [0, 1, 2, 3, 4, 5]
    assert step.logits_rows.tolist() == [0, 1, 0, 0, 0]
    assert metadata.block_table.shape == (5, 16)
    assert metadata.block_table[:2, :3].tolist() == [[1, 2, 9], [4, 0, 0]]


def test_a_step_of_null_sequences_alone_has_all_lengths_and_no_slot() -> None:
    made = InputBatch(FULL, 4, 8, 64, torch.device("cpu"))
    filled = made.fill_null(StepShape(9, 3, 2))
    assert (filled.max_query_len, filled.max_seq_len) == (7, 64)
    metadata = only(made.tensors(filled))
    assert metadata.query_start_loc.tolist() == [0, 7, 8, 9]
    assert metadata.seq_lens.tolist() == [0, 0, 0]
    assert metadata.slot_mapping.tolist() == [-1] * 9


def test_rows_of_no_sequence_fill_a_lone_token_and_a_lone_draw() -> None:
    made = InputBatch(FULL, 4, 8, 64, torch.device("cpu"), min_rows=2)
    step = made.prepare(batch(share("a", [5], 3, [(7,)])))
    assert (step.token_ids.tolist(), step.logits_rows.tolist()) == ([5, 0], [0, 0])
    assert only(step).query_start_loc.tolist() == [0, 1]
    assert only(step).slot_mapping.tolist() == [31, -1]
    step = made.prepare(batch(share("b", [5, 6, 7], 0, [(8,)])))
    assert (step.token_ids.tolist(), step.logits_rows.tolist()) == ([5, 6, 7], [2, 0])
    step = made.prepare(batch(share("c", [5, 6], 0, [(9,)], samples=False)))
    assert (step.token_ids.tolist(), step.logits_rows.tolist()) == ([5, 6], [])


def test_samples_of_one_prompt_have_a_row_of_logits_each() -> None:
    family = share("a", [5, 6], 0, [(7,)])._replace(sequence_ids=("a", "b", "c"))
    assert inputs(FULL).prepare(batch(family, share("d", [1], 0, [(8,)]))).logits_rows.tolist() == [1, 1, 1, 2]


@pytest.mark.parametrize("windows", [[None], [9], [None, 9], [5, 5, None, 5, 11]], ids=str)
@pytest.mark.parametrize("tight", [True, False])
def test_every_step_of_a_preempting_run_equals_tables_worked_out_anew(windows: list[int | None], tight: bool) -> None:
    """Against the block manager's own tables, wherever a window still looks: after slide-out and readmission too."""
    source = random.Random(3)
    groups = plan_groups(windows)
    blocks = BlockManager(groups, (9 if tight else 60) * sum(group.pages_per_block for group in groups), 4)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16, watermark_tokens=0), blocks)
    made = inputs(groups, longest=64)
    for i in range(40):
        scheduler.add(
            Request(
                request_id=str(i),
                token_ids=[1] * source.choice([2, 4, 9]),
                max_tokens=source.choice([5, 20, 28]),
                eos_token_ids=frozenset(),
                stop_token_ids=frozenset(),
                block_hashes=BlockHashes(4),
            )
        )
    slid = 0
    while scheduler.has_work:
        scheduled = scheduler.schedule()
        step = made.prepare(scheduled)
        slid += compare(step, scheduled, blocks)
        scheduler.update(scheduled, {one.request_id: source.randrange(3) for one in scheduled.requests if one.samples})
        if source.random() < 0.05 and scheduler.running:
            scheduler.finish(source.choice(list(scheduler.running)).request_id)
    assert (slid > 0) == any(windows)
    assert scheduler.counters.cached_prompt_tokens > 0
    assert (scheduler.counters.num_preemptions > 0) == tight


def compare(step: StepTensors, scheduled: ScheduledBatch, blocks: BlockManager) -> int:
    """Check every table entry that attention may look at, and every slot; returns how many blocks had slid out."""
    slid = 0
    for index, group in enumerate(blocks.groups):
        for column, metadata in enumerate(step.metadata[index]):
            slots = []
            for row, one in enumerate(scheduled.requests):
                table, start = blocks.block_tables(one.request_id)[index], one.num_computed_tokens
                end = start + one.num_tokens
                first = group.first_needed_block(start, 4)
                slid += first
                shown = metadata.block_table[row].tolist()
                assert shown[first : -(-end // 4)] == [pages[column] for pages in table[first:]]
                slots += [table[position // 4][column] * 4 + position % 4 for position in range(start, end)]
            assert metadata.slot_mapping.tolist() == slots
            assert all(slot >= 4 for slot in slots), "the null page is never written"
    assert step.token_ids.tolist() == [token for one in scheduled.requests for token in one.token_ids]
    return slid
