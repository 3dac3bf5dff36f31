"""Block tables on the host and their copy on a device, brought up to date by changes alone."""

from __future__ import annotations

import random

import torch

from block_manager.block_table import ChangedBlocks
from block_manager.groups import plan_groups
from engine.block_tables import BlockTables

CPU = torch.device("cpu")


def test_a_copy_that_gets_only_changes_shows_what_the_host_has() -> None:
    source = random.Random(2)
    tables = BlockTables(plan_groups([None, 4, 4]), 5, 9, CPU)
    for _ in range(200):
        for _ in range(source.randrange(4)):  # the same row may be written twice before it is sent
            first = source.randrange(9)
            count = source.randrange(10 - first)
            pages = tuple(
                [tuple(source.randrange(1000) for _ in range(columns)) for _ in range(count)] for columns in (1, 2)
            )
            tables.write(source.randrange(5), ChangedBlocks(first, pages))
        changes = tables.take_changes()
        if changes is not None:
            assert len(set(changes.indices.tolist())) == len(changes.indices)
            tables.apply(type(changes)(torch.from_numpy(changes.indices), torch.from_numpy(changes.values)))
        assert torch.equal(tables.of_rows(torch.arange(5), 9), torch.from_numpy(tables._pages))


def test_only_what_was_written_is_a_change() -> None:
    tables = BlockTables(plan_groups([None]), 3, 4, CPU)
    tables.write(1, ChangedBlocks(2, ([(8,), (9,)],)))
    changes = tables.take_changes()
    assert (changes.indices.tolist(), changes.values.tolist()) == ([6, 7], [8, 9])
    assert tables.take_changes() is None
    tables.write(1, ChangedBlocks(3, ([],)))
    assert tables.take_changes() is None


def test_tables_of_the_host_itself_have_nothing_to_send() -> None:
    tables = BlockTables(plan_groups([None, 4]), 3, 4, None)
    tables.write(2, ChangedBlocks(1, ([(8,)], [(9,)])))
    assert tables.take_changes() is None
    assert tables.of_rows(torch.tensor([2, 0], dtype=torch.int32), 2).tolist() == [[[0, 8], [0, 0]], [[0, 9], [0, 0]]]
