"""ResponseStore: its bounds, and who goes first."""

from __future__ import annotations

import pytest

from server.openai.responses.items import MessageItem
from server.openai.responses.response_store import ResponseStore, StoredResponse


def stored(name: str, size: int = 100) -> StoredResponse:
    output = MessageItem(id=f"msg_{name}", role="assistant", content=name)
    return StoredResponse(name, b"x" * size, (), (output,))


def test_the_one_not_used_for_longest_goes_when_there_are_too_many() -> None:
    store = ResponseStore(max_responses=2)
    store.put("", stored("a"))
    store.put("", stored("b"))
    assert store.get("", "a") is not None
    store.put("", stored("c"))
    assert [name for name in "abc" if store.get("", name)] == ["a", "c"]
    assert store.find_item("", "msg_b") is None
    assert store.find_item("", "msg_c") == stored("c").output[0]


def test_bytes_are_bounded_and_counted_with_the_conversation_before() -> None:
    store = ResponseStore(max_bytes=1000)
    store.put("", stored("a", 400))
    store.put("", stored("b", 500))
    assert (len(store), store.num_bytes) == (2, 900)
    long = MessageItem(role="user", content="y" * 450)
    before = StoredResponse("c", b"x" * 100, (long,), ())
    assert before.size() > 550
    store.put("", before)
    assert [name for name in "abc" if store.get("", name)] == ["c"]
    assert store.num_bytes == before.size()


def test_what_is_larger_than_everything_is_not_kept_and_costs_nothing_its_place() -> None:
    store = ResponseStore(max_bytes=1000)
    store.put("", stored("a", 900))
    store.put("", stored("b", 1001))
    assert store.get("", "a") is not None
    assert store.get("", "b") is None


@pytest.mark.parametrize("tenant", ["", "key-2"])
def test_a_tenant_finds_its_own_only(tenant: str) -> None:
    store = ResponseStore()
    store.put("key-1", stored("a"))
    assert store.get(tenant, "a") is None
    assert store.find_item(tenant, "msg_a") is None
    assert not store.delete(tenant, "a")
    assert store.delete("key-1", "a")
    assert (len(store), store.num_bytes, store.find_item("key-1", "msg_a")) == (0, 0, None)
