"""Forks share every written page and copy only what they write; a rollback gives whole pages back."""

from __future__ import annotations

import pytest

from block_manager.groups import plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager
from block_manager.transfers import TransferKind


def hashes_of(token_ids: list[int], blocks: BlockManager) -> BlockHashes:
    hashes = BlockHashes(blocks.block_size)
    hashes.extend(token_ids)
    return hashes


def start(blocks: BlockManager, name: str, token_ids: list[int]) -> BlockHashes:
    hashes = hashes_of(token_ids, blocks)
    match = blocks.match_prefix(hashes, len(token_ids))
    assert blocks.admit(name, match, len(token_ids))
    blocks.commit(name, len(token_ids), hashes)
    return hashes


def advance(blocks: BlockManager, name: str, token_ids: list[int]) -> None:
    assert blocks.grow(name, len(token_ids))
    blocks.commit(name, len(token_ids), hashes_of(token_ids, blocks))


def table(blocks: BlockManager, name: str) -> list[int]:
    return [page for (page,) in blocks.block_tables(name)[0]]


# ---- forks


def test_eight_samples_of_a_thousand_tokens_hold_one_prompt_and_eight_tails() -> None:
    blocks = BlockManager(plan_groups([None]), 100, 16)
    prompt = list(range(1000))  # 62 full pages and 8 tokens
    start(blocks, "0", prompt)
    for child in range(1, 8):
        blocks.fork("0", str(child))
    assert blocks.usage().held == 63
    assert blocks.usage().groups[0].shared == 63
    for child in range(8):
        advance(blocks, str(child), [*prompt, 5000 + child])
    assert blocks.usage().held == 62 + 8
    assert blocks.usage().groups[0].shared == 62
    copies = [transfer for transfer in blocks.take_transfers() if transfer.kind is TransferKind.COPY]
    assert sum(len(transfer.targets) for transfer in copies) == 7  # the last writer keeps the original
    assert len({table(blocks, str(child))[62] for child in range(8)}) == 8
    assert blocks.audit() == []
    for child in range(8):
        blocks.free(str(child))
    assert blocks.usage().held == 0


def test_a_fork_takes_no_page_and_leaves_pages_without_tokens_to_its_parent() -> None:
    blocks = BlockManager(plan_groups([None]), 4, 4)
    start(blocks, "a", [1, 2, 3])
    assert blocks.grow("a", 12)
    blocks.fork("a", "b")
    assert table(blocks, "b") == table(blocks, "a")[:1]
    assert blocks.usage().held == 3


def test_a_full_last_page_is_shared_for_good() -> None:
    blocks = BlockManager(plan_groups([None]), 4, 4)
    start(blocks, "a", [1, 2, 3, 4])
    blocks.fork("a", "b")
    assert blocks.pages_to_reach("b", 5) == 1
    advance(blocks, "a", [1, 2, 3, 4, 5])
    advance(blocks, "b", [1, 2, 3, 4, 6])
    assert blocks.take_transfers() == ()
    assert table(blocks, "a")[0] == table(blocks, "b")[0]


def test_a_page_is_copied_only_while_it_is_shared() -> None:
    blocks = BlockManager(plan_groups([None]), 4, 4)
    start(blocks, "a", [1, 2])
    blocks.fork("a", "b")
    assert blocks.pages_to_reach("a", 3) == blocks.pages_to_reach("b", 3) == 1
    (shared,) = table(blocks, "a")
    advance(blocks, "b", [1, 2, 3])
    (copy,) = blocks.take_transfers()
    assert (copy.sources, copy.targets) == ((shared,), (table(blocks, "b")[0],))
    assert table(blocks, "a") == [shared]
    assert blocks.pages_to_reach("a", 3) == 0
    advance(blocks, "a", [1, 2, 4])
    assert blocks.take_transfers() == ()


def test_a_child_whose_parent_ended_writes_on_in_place() -> None:
    blocks = BlockManager(plan_groups([None]), 4, 4)
    start(blocks, "a", [1, 2])
    blocks.fork("a", "b")
    blocks.free("a")
    advance(blocks, "b", [1, 2, 3])
    assert blocks.take_transfers() == ()
    assert blocks.usage().held == 1


def test_growth_that_needs_a_copy_is_refused_whole_when_no_page_is_left() -> None:
    blocks = BlockManager(plan_groups([None]), 1, 4)
    start(blocks, "a", [1, 2])
    blocks.fork("a", "b")
    assert not blocks.grow("b", 3)
    assert blocks.take_transfers() == ()
    assert table(blocks, "a") == table(blocks, "b")
    assert blocks.audit() == []


def test_growth_to_what_is_written_copies_nothing() -> None:
    blocks = BlockManager(plan_groups([None]), 4, 4)
    start(blocks, "a", [1, 2])
    blocks.fork("a", "b")
    assert blocks.grow("b", 2)
    assert blocks.take_transfers() == ()


def test_forks_share_what_a_window_still_holds() -> None:
    blocks = BlockManager(plan_groups([None, 8]), 20, 4)
    start(blocks, "a", list(range(18)))
    blocks.fork("a", "b")
    assert blocks.block_tables("b") == blocks.block_tables("a")
    advance(blocks, "b", list(range(19)))
    full, sliding = blocks.block_tables("b")
    assert full[:4] == blocks.block_tables("a")[0][:4]
    assert full[4] != blocks.block_tables("a")[0][4]
    assert sliding[4] != blocks.block_tables("a")[1][4]
    assert blocks.audit() == []


def test_a_fork_of_the_unknown_or_into_a_known_name_is_an_error() -> None:
    blocks = BlockManager(plan_groups([None]), 4, 4)
    start(blocks, "a", [1, 2])
    with pytest.raises(KeyError):
        blocks.fork("b", "c")
    with pytest.raises(ValueError, match="a has a table already"):
        blocks.fork("a", "a")
    assert blocks.audit() == []


# ---- rollback


@pytest.mark.parametrize(("kept", "pages"), [(11, 3), (9, 3), (8, 2), (5, 2), (4, 1), (1, 1), (0, 0)])
def test_a_rollback_keeps_pages_that_still_hold_a_token(kept: int, pages: int) -> None:
    blocks = BlockManager(plan_groups([None]), 8, 4, enable_prefix_caching=False)
    start(blocks, "a", list(range(11)))
    blocks.rollback("a", kept)
    assert blocks.usage().held == pages == len(table(blocks, "a"))
    assert blocks.usage().free == 8 - pages
    advance(blocks, "a", list(range(kept + 1)))
    assert blocks.audit() == []


def test_a_rollback_gives_back_pages_taken_ahead() -> None:
    blocks = BlockManager(plan_groups([None]), 8, 4)
    start(blocks, "a", list(range(6)))
    assert blocks.grow("a", 20)
    blocks.rollback("a", 6)
    assert blocks.usage().held == 2


def test_other_tokens_after_a_rollback_into_a_hashed_page_make_it_unfindable_and_then_findable_anew() -> None:
    blocks = BlockManager(plan_groups([None]), 8, 4)
    old, new = [1, 1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 2, 2, 3, 3]

    def found(token_ids: list[int]) -> int:
        return blocks.match_prefix(hashes_of(token_ids, blocks), 9).num_tokens

    start(blocks, "a", old)
    blocks.rollback("a", 6)
    assert found(old) == 8  # nothing is overwritten yet
    assert blocks.grow("a", 8)
    assert found(old) == 4
    blocks.commit("a", 8, hashes_of(new, blocks))
    assert (found(old), found(new)) == (4, 8)
    assert blocks.take_transfers() == ()
    assert blocks.audit() == []


def test_a_rollback_into_a_page_that_another_found_copies_it_before_writing() -> None:
    blocks = BlockManager(plan_groups([None]), 8, 4)
    start(blocks, "a", [1, 1, 1, 1, 2, 2, 2, 2])
    blocks.rollback("a", 6)
    start(blocks, "b", [1, 1, 1, 1, 2, 2, 2, 2, 5])
    shared = table(blocks, "a")[1]
    assert table(blocks, "b")[1] == shared
    advance(blocks, "a", [1, 1, 1, 1, 2, 2, 3])
    (copy,) = blocks.take_transfers()
    assert (copy.kind, copy.sources) == (TransferKind.COPY, (shared,))
    assert table(blocks, "b")[1] == shared
    assert blocks.audit() == []


def test_pages_filled_anew_after_a_rollback_are_registered_again() -> None:
    blocks = BlockManager(plan_groups([None]), 8, 4)
    start(blocks, "a", list(range(12)))
    blocks.rollback("a", 4)
    new = [0, 1, 2, 3, *range(50, 58)]
    advance(blocks, "a", new)
    assert blocks.match_prefix(hashes_of(new, blocks), 13).num_tokens == 12


@pytest.mark.parametrize("max_rollback", [0, 1, 4, 5, 9])
def test_a_window_can_be_rolled_back_by_max_rollback_tokens_from_any_length(max_rollback: int) -> None:
    for length in range(12, 40):
        blocks = BlockManager(plan_groups([None, 6]), 40, 4, max_rollback=max_rollback)
        start(blocks, "a", list(range(length)))
        for back in range(max_rollback, -1, -1):
            target = length - back
            assert blocks.groups[1].first_needed_block(target, 4) >= blocks.sequences["a"].tables[1].first_held
        blocks.rollback("a", length - max_rollback)
        advance(blocks, "a", list(range(length)))
        assert blocks.audit() == []


def test_a_window_that_moved_on_cannot_be_rolled_back_and_nothing_changes() -> None:
    blocks = BlockManager(plan_groups([None, 6]), 40, 4, max_rollback=2)
    start(blocks, "a", list(range(30)))
    before = (blocks.usage().held, [list(pages) for pages in blocks.block_tables("a")])
    with pytest.raises(ValueError, match="a cannot roll back to 12: sliding_6 has moved on"):
        blocks.rollback("a", 12)
    assert (blocks.usage().held, [list(pages) for pages in blocks.block_tables("a")]) == before
    assert blocks.sequences["a"].num_tokens == 30


@pytest.mark.parametrize("target", [-1, 11])
def test_a_rollback_to_more_than_there_is_or_less_than_nothing_is_an_error(target: int) -> None:
    blocks = BlockManager(plan_groups([None]), 8, 4)
    start(blocks, "a", list(range(10)))
    with pytest.raises(ValueError, match=f"a has 10 tokens and cannot roll back to {target}"):
        blocks.rollback("a", target)
