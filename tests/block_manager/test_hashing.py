"""Block hashes: equal exactly when all tokens from position 0 on, and the salt, are equal."""

from __future__ import annotations

import hashlib

from hypothesis import given, settings
from hypothesis import strategies as st

from block_manager.hashing import BlockHashes, content_of


def chain(token_ids: list[int], salt: str = "", block_size: int = 4) -> list[bytes]:
    hashes = BlockHashes(block_size, salt)
    hashes.extend(token_ids)
    return [hashes[i] for i in range(len(hashes))]


def test_only_full_blocks_have_a_hash() -> None:
    assert [len(chain(list(range(n)))) for n in (0, 3, 4, 7, 8, 9)] == [0, 0, 1, 1, 2, 2]


def test_the_chain_is_the_documented_formula() -> None:
    def digest(kind: bytes, *parts: bytes) -> bytes:
        return hashlib.sha256(kind + b"".join(len(part).to_bytes(8, "little") + part for part in parts)).digest()

    def tokens(*ids: int) -> bytes:
        return b"".join(token.to_bytes(4, "little") for token in ids)

    namespace = digest(b"namespace", b"tenant", b"adapter")
    first = digest(b"block", digest(b"root"), tokens(1, 2, 3, 262_143))
    second = digest(b"block", first, tokens(5, 6, 7, 8))
    hashes = BlockHashes(4, "tenant", "adapter")
    hashes.extend([1, 2, 3, 262_143, 5, 6, 7, 8])
    assert [hashes[0], hashes[1]] == [namespace + first, namespace + second]
    assert content_of(hashes[1]) == second


def test_a_changed_token_changes_its_block_and_every_later_one() -> None:
    original = chain(list(range(16)))
    for position in range(16):
        changed = list(range(16))
        changed[position] = 99
        same = [a == b for a, b in zip(original, chain(changed), strict=True)]
        assert same == [True] * (position // 4) + [False] * (4 - position // 4)


def test_the_same_block_after_another_prefix_is_another_block() -> None:
    assert chain([1, 1, 1, 1, 7, 7, 7, 7])[1] != chain([2, 2, 2, 2, 7, 7, 7, 7])[1]
    assert chain([7, 7, 7, 7, 7, 7, 7, 7])[0] != chain([7, 7, 7, 7, 7, 7, 7, 7])[1]


def test_g07_salts_share_nothing() -> None:
    salts = ["", "a", "b", "ab", "root", "\x00"]
    firsts = [chain([1, 2, 3, 4], salt)[0] for salt in salts]
    assert len(set(firsts)) == len(salts)


def test_the_same_text_as_salt_and_as_adapter_shares_nothing() -> None:
    chains = [BlockHashes(4, "x", ""), BlockHashes(4, "", "x"), BlockHashes(4, "x", "x"), BlockHashes(4, "xx", "")]
    for hashes in chains:
        hashes.extend([1, 2, 3, 4])
    assert len({hashes[0] for hashes in chains}) == 4


def test_salts_differ_in_the_namespace_alone() -> None:
    (plain,), (salted,) = chain([1, 2, 3, 4]), chain([1, 2, 3, 4], "a")
    assert plain != salted
    assert content_of(plain) == content_of(salted)


def test_truncated_chains_grow_again_with_other_tokens() -> None:
    hashes = BlockHashes(4)
    hashes.extend(list(range(12)))
    for kept, length in ((11, 2), (8, 2), (7, 1)):
        hashes.truncate(kept)
        assert len(hashes) == length
    other = [*range(7), 99, *range(8, 12)]
    hashes.extend(other)
    assert [hashes[i] for i in range(3)] == chain(other)


def test_a_forked_chain_goes_its_own_way_under_the_same_salt() -> None:
    hashes = BlockHashes(4, "a")
    hashes.extend([1, 2, 3, 4])
    copy = hashes.fork()
    hashes.extend([1, 2, 3, 4, 5, 5, 5, 5])
    copy.extend([1, 2, 3, 4, 6, 6, 6, 6])
    assert [hashes[0], hashes[1]] == chain([1, 2, 3, 4, 5, 5, 5, 5], "a")
    assert [copy[0], copy[1]] == chain([1, 2, 3, 4, 6, 6, 6, 6], "a")


def test_g08_a_salt_cannot_imitate_tokens() -> None:
    """A salt made of another chain's bytes starts another chain: every input carries its kind and length."""
    tokens = [0x64636261, 0x68676665, 1, 2]  # "abcdefgh" as 32-bit ids
    assert chain([*tokens, 1, 1, 1, 1])[1] not in chain([1, 1, 1, 1], "abcdefgh")


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.lists(st.integers(1, 9), max_size=10), st.integers(1, 8))
def test_hashing_in_pieces_equals_hashing_at_once(token_ids: list[int], cuts: list[int], block_size: int) -> None:
    hashes, end = BlockHashes(block_size), 0
    for cut in cuts:
        end += cut
        hashes.extend(token_ids[:end])
    hashes.extend(token_ids)
    assert [hashes[i] for i in range(len(hashes))] == chain(token_ids, block_size=block_size)
