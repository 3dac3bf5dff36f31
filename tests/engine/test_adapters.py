"""Which adapters requests can choose, and how long one stays when its name is gone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from engine.adapter_messages import AdapterAnswer, LoadAdapter, UnloadAdapter
from engine.adapters import AdapterError, Adapters, AdapterUse


@dataclass(frozen=True)
class ReadAdapter:
    digest: str
    rank: int = 4
    num_bytes: int = 100


class Store:
    """Reads while ``may_read`` is set; "broken" and "surprise" cannot be read, "huge" not installed."""

    def __init__(self) -> None:
        self.installed: dict[int, str] = {}
        self.may_read = threading.Event()
        self.may_read.set()

    def read(self, path: str) -> ReadAdapter:
        assert self.may_read.wait(20)
        if path == "broken":
            raise AdapterError("invalid_adapter", "it is broken")
        if path == "surprise":
            raise RecursionError("nobody thought of this")
        return ReadAdapter(f"digest of {path}")

    def install(self, number: int, adapter: ReadAdapter) -> None:
        if adapter.digest == "digest of huge":
            raise AdapterError("invalid_adapter", "no room")
        self.installed[number] = adapter.digest

    def remove(self, number: int) -> None:
        del self.installed[number]


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.may_read.set()


@pytest.fixture
def adapters(store: Store) -> Adapters:
    return Adapters(store)


def load(adapters: Adapters, name: str, path: str, *, replaces: bool = False) -> AdapterAnswer:
    adapters.begin_load(LoadAdapter(7, name, path, replaces))
    assert adapters.is_loading
    while not (answers := adapters.take_loaded()):
        pass
    [answer] = answers
    assert answer.query_id == 7
    assert answer.adapters == adapters.reports()
    return answer


def test_a_request_gets_the_number_and_the_digest_of_its_adapter(adapters: Adapters) -> None:
    load(adapters, "a", "x")
    load(adapters, "b", "y")
    assert adapters.take("b", ("1",)) == AdapterUse(2, "digest of y")
    assert adapters.take("", ("2",)) == AdapterUse(0, "")
    assert adapters.use_of("1") == AdapterUse(2, "digest of y")
    assert adapters.use_of("2") == AdapterUse(0, "")
    with pytest.raises(AdapterError, match="no adapter 'c' is loaded"):
        adapters.take("c", ("3",))
    assert [(one.name, one.path, one.rank, one.num_bytes) for one in adapters.reports()] == [
        ("a", "x", 4, 100),
        ("b", "y", 4, 100),
    ]


def test_a_load_that_fails_in_a_way_nobody_thought_of_is_refused_and_the_engine_goes_on(adapters: Adapters) -> None:
    answer = load(adapters, "a", "surprise")
    assert answer.code == "invalid_adapter"
    assert answer.problem == "surprise cannot be loaded: RecursionError: nobody thought of this"
    with pytest.raises(AdapterError, match=r"^surprise cannot be loaded: "):  # as an engine that comes back loads it
        adapters.load_now("a", "surprise")
    assert load(adapters, "a", "x").problem == ""


def test_an_unloaded_adapter_stays_until_the_last_request_that_uses_it_has_ended(adapters: Adapters, store) -> None:
    load(adapters, "a", "x")
    adapters.take("a", ("1", "1-child"))
    answer = adapters.unload(UnloadAdapter(8, "a"))
    assert (answer.problem, answer.adapters) == ("", [])
    with pytest.raises(AdapterError):
        adapters.take("a", ("2",))
    adapters.release("1")
    adapters.release("1")
    assert store.installed == {1: "digest of x"}
    adapters.release("1-child")
    assert store.installed == {}


def test_an_unused_adapter_goes_at_once_and_an_unknown_one_is_said_to_be(adapters: Adapters, store) -> None:
    load(adapters, "a", "x")
    adapters.unload(UnloadAdapter(8, "a"))
    assert store.installed == {}
    again = adapters.unload(UnloadAdapter(9, "a"))
    assert (again.query_id, again.code, again.problem) == (9, "unknown_adapter", "no adapter 'a' is loaded")


def test_a_replaced_adapter_serves_who_has_it_and_its_successor_the_others(adapters: Adapters, store) -> None:
    load(adapters, "a", "x")
    adapters.take("a", ("1",))
    refused = load(adapters, "a", "y")
    assert (refused.code, refused.problem) == ("adapter_exists", "an adapter 'a' is loaded already")
    assert load(adapters, "a", "y", replaces=True).problem == ""
    assert adapters.take("a", ("2",)).digest == "digest of y"
    assert sorted(store.installed.values()) == ["digest of x", "digest of y"]
    adapters.release("1")
    assert list(store.installed.values()) == ["digest of y"]


def test_what_cannot_be_read_or_finds_no_room_changes_nothing(adapters: Adapters, store) -> None:
    load(adapters, "a", "x")
    for path, problem in (("broken", "it is broken"), ("huge", "no room")):
        answer = load(adapters, "a", path, replaces=True)
        assert (answer.code, answer.problem) == ("invalid_adapter", problem)
    assert adapters.take("a", ("1",)).digest == "digest of x"
    assert list(store.installed.values()) == ["digest of x"]


def test_of_two_loads_of_one_name_that_are_under_way_the_first_wins(adapters: Adapters, store) -> None:
    store.may_read.clear()
    adapters.begin_load(LoadAdapter(1, "a", "x"))
    adapters.begin_load(LoadAdapter(2, "a", "y"))
    assert adapters.take_loaded() == []
    store.may_read.set()
    answers: list[AdapterAnswer] = []
    while len(answers) < 2:
        answers += adapters.take_loaded()
    assert [(one.query_id, one.code) for one in answers] == [(1, ""), (2, "adapter_exists")]
    assert not adapters.is_loading
    assert list(store.installed.values()) == ["digest of x"]


def test_requests_of_each_adapter_are_counted_by_whether_they_run(adapters: Adapters) -> None:
    load(adapters, "a", "x")
    load(adapters, "b", "y")
    adapters.take("a", ("1", "2", "3"))
    counts = [(one.name, one.running, one.waiting) for one in adapters.requests({"1", "3", "of the model itself"})]
    assert counts == [("a", 2, 1), ("b", 0, 0)]


def test_an_engine_without_a_store_says_that_it_loads_none() -> None:
    answer = load(Adapters(), "a", "x")
    assert (answer.code, answer.problem) == ("invalid_adapter", "this engine loads no adapters")
