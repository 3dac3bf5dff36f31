"""Transfers come in the order that makes them right, and merging them changes no outcome."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from block_manager.groups import plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager
from block_manager.transfers import Transfer, TransferKind, merged

COPY, OUT, IN = TransferKind.COPY, TransferKind.OUT, TransferKind.IN


def pools_after(transfers: tuple[Transfer, ...]) -> tuple[dict[int, str], dict[int, str]]:
    """What device and host pages hold when all pages of a transfer are read before any is written."""
    device = {page: f"device {page}" for page in range(8)}
    host = {page: f"host {page}" for page in range(8)}
    ends = {COPY: (device, device), OUT: (device, host), IN: (host, device)}
    for transfer in transfers:
        source, target = ends[transfer.kind]
        contents = [source[page] for page in transfer.sources]
        target.update(zip(transfer.targets, contents, strict=True))
    return device, host


PAIRS = st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda pair: pair[0] != pair[1])
TRANSFERS = st.lists(
    st.builds(lambda kind, pair: Transfer(kind, pair[:1], pair[1:]), st.sampled_from(TransferKind), PAIRS), max_size=12
)


@settings(deadline=None, max_examples=400, derandomize=True)
@given(TRANSFERS)
def test_merged_transfers_move_the_same(transfers: list[Transfer]) -> None:
    together = merged(transfers)
    assert pools_after(together) == pools_after(tuple(transfers))
    assert sum(len(transfer.sources) for transfer in together) == len(transfers)


def test_neighbours_of_one_kind_become_one_transfer() -> None:
    assert merged([Transfer(OUT, (1, 2), (5, 6)), Transfer(OUT, (3,), (7,)), Transfer(IN, (7,), (3,))]) == (
        Transfer(OUT, (1, 2, 3), (5, 6, 7)),
        Transfer(IN, (7,), (3,)),
    )
    assert merged([]) == ()


def test_a_page_that_is_copied_on_is_not_in_the_transfer_that_wrote_it() -> None:
    chain = [Transfer(COPY, (1,), (2,)), Transfer(COPY, (2,), (3,))]
    assert merged(chain) == tuple(chain)
    back = [Transfer(COPY, (1,), (2,)), Transfer(COPY, (3,), (1,))]
    assert merged(back) == tuple(back)
    twice = [Transfer(OUT, (1,), (2,)), Transfer(OUT, (3,), (2,))]
    assert merged(twice) == tuple(twice)


# ---- the hazards


def computed(blocks: BlockManager, name: str, token_ids: list[int]) -> BlockHashes:
    hashes = BlockHashes(blocks.block_size)
    hashes.extend(token_ids)
    match = blocks.match_prefix(hashes, len(token_ids))
    assert blocks.admit(name, match, len(token_ids))
    blocks.commit(name, len(token_ids), hashes)
    return hashes


def test_taken_transfers_are_not_given_again() -> None:
    blocks = BlockManager(plan_groups([None]), 4, 4, num_host_pages=4)
    computed(blocks, "s", [1, 2, 3])
    assert blocks.swap_out("s")
    assert len(blocks.take_transfers()) == 1
    assert blocks.take_transfers() == ()


def test_a_host_page_is_read_before_an_eviction_reuses_it() -> None:
    """The one host page comes back to the device; what is evicted to make room goes into that page, afterwards."""
    blocks = BlockManager(plan_groups([None]), 2, 4, num_host_pages=1)
    computed(blocks, "away", [1, 2, 3])
    assert blocks.swap_out("away")
    blocks.take_transfers()
    computed(blocks, "a", [5, 5, 5, 5])
    computed(blocks, "b", [6, 6, 6, 6])
    blocks.free("b")
    blocks.free("a")
    assert blocks.usage().cached == 2
    assert blocks.swap_in("away", 3)  # evicts b's page, finds the host full
    assert blocks.grow("away", 5)  # evicts a's page to the host page that "away" left
    first, second = blocks.take_transfers()
    assert (first.kind, first.sources) == (IN, (1,))
    assert (second.kind, second.targets) == (OUT, (1,))
    assert blocks.audit() == []


def test_a_found_host_page_is_read_before_it_is_pushed_out() -> None:
    """Two blocks, two device pages and two host pages: fetching one evicts another into the tier it came from."""
    blocks = BlockManager(plan_groups([None]), 2, 4, num_host_pages=2)
    old = [1, 1, 1, 1, 2, 2, 2, 2]
    computed(blocks, "old", old)
    blocks.free("old")
    computed(blocks, "new", [3, 3, 3, 3, 4, 4, 4, 4])  # both of old's blocks are on the host now
    blocks.free("new")
    device, host = {1: "", 2: ""}, {1: "", 2: ""}

    def carry_out() -> None:
        for transfer in blocks.take_transfers():
            source, target = {COPY: (device, device), OUT: (device, host), IN: (host, device)}[transfer.kind]
            contents = [source[page] for page in transfer.sources]
            target.update(zip(transfer.targets, contents, strict=True))

    evicted = [transfer for transfer in blocks._transfers if transfer.kind is OUT]
    tail, head = (page for transfer in evicted for page in transfer.sources)  # tails are evicted first
    device.update({head: "old head", tail: "old tail"})
    carry_out()
    assert sorted(host.values()) == ["old head", "old tail"]
    device.update({1: "new", 2: "new"})
    hashes = BlockHashes(4)
    hashes.extend(old)
    match = blocks.match_prefix(hashes, 9)
    assert match.num_tokens == 8
    assert blocks.admit("again", match, 8)
    carry_out()
    (first,), (second,) = blocks.block_tables("again")[0]
    assert (device[first], device[second]) == ("old head", "old tail")
    assert blocks.audit() == []


def test_a_device_page_is_saved_before_it_is_filled_with_something_else() -> None:
    """The swapped sequence's page is the source of its way out, and the target of another's way in."""
    blocks = BlockManager(plan_groups([None]), 1, 4, num_host_pages=2, enable_prefix_caching=False)
    computed(blocks, "a", [1, 2, 3])
    assert blocks.swap_out("a")
    computed(blocks, "b", [4, 5, 6])
    assert blocks.take_transfers() == (Transfer(OUT, (1,), (1,)),)
    assert blocks.swap_out("b")
    assert blocks.swap_in("a", 3)
    assert blocks.take_transfers() == (Transfer(OUT, (1,), (2,)), Transfer(IN, (1,), (1,)))


def test_a_copy_comes_before_its_source_is_swapped_in_to() -> None:
    """b copies the shared page, a leaves, and a's old page takes what comes back from the host: in this order."""
    blocks = BlockManager(plan_groups([None]), 2, 4, num_host_pages=2, enable_prefix_caching=False)
    computed(blocks, "away", [9, 9, 9])
    assert blocks.swap_out("away")
    blocks.take_transfers()
    computed(blocks, "a", [1, 2])
    blocks.fork("a", "b")
    ((shared,),) = blocks.block_tables("a")[0]
    assert blocks.grow("b", 3)
    blocks.free("a")
    assert blocks.swap_in("away", 3)
    copy, arrival = blocks.take_transfers()
    assert (copy.kind, copy.sources) == (COPY, (shared,))
    assert (arrival.kind, arrival.targets) == (IN, (shared,))
