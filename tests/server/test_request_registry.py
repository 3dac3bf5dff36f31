"""The registry of requests in flight: bounded, and silent about other tenants."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from engine.messages import PreemptionNote
from server.http.request_id import RequestId
from server.request_registry import ANOTHER_REQUEST, InFlightRequest, RequestRegistry


def request(own: str, tenant: str = "key-1", chosen: str | None = None) -> InFlightRequest:
    return InFlightRequest(
        request_id=RequestId(own, chosen), tenant=tenant, arrived=0.0, sequence_ids=(f"{own}-0-0", f"{own}-0-1")
    )


def note(requester: str) -> PreemptionNote:
    return PreemptionNote(
        requester=requester, seconds=1.5, kind="recompute", cause="decode", pages_freed=1, tokens_to_recompute=2
    )


@pytest.mark.parametrize("name", ["cmpl-a", "mine", "cmpl-a-0-0", "cmpl-a-0-1"])
def test_a_request_is_found_by_each_of_its_names_while_it_is_in_flight(name) -> None:
    registry = RequestRegistry()
    one = request("cmpl-a", chosen="mine")
    assert registry.find("key-1", name) is None
    with registry.holding(one):
        assert registry.find("key-1", name) is one
        assert registry.find("key-2", name) is None
    assert registry.find("key-1", name) is None


def test_no_more_is_remembered_than_there_is_room_for() -> None:
    registry = RequestRegistry(capacity=2)
    with ExitStack() as stack:
        requests = [request(name, chosen=f"my-{name}") for name in "abc"]
        for one in requests:
            stack.enter_context(registry.holding(one))
        assert registry.oldest("key-1", 10) == requests[:2]
        assert registry.find("key-1", "c") is None
        assert registry.find("key-1", "my-c") is None
        shown = [one.requester for one in registry.shown("key-1", [note(f"{name}-0-0") for name in "abc"])]
        assert shown == [ANOTHER_REQUEST, "b-0-0", "c-0-0"]
    assert registry.oldest("key-1", 10) == []


def test_a_tenant_reads_the_ids_of_its_own_requests_though_they_have_ended() -> None:
    registry = RequestRegistry()
    for one in (request("a"), request("b", "key-2")):
        with registry.holding(one):
            pass
    notes = [note("a-0-1"), note("b-0-0"), note("unknown-0-0")]
    assert [one.requester for one in registry.shown("key-1", notes)] == ["a-0-1", ANOTHER_REQUEST, ANOTHER_REQUEST]
    assert [one.requester for one in registry.shown("key-2", notes)] == [ANOTHER_REQUEST, "b-0-0", ANOTHER_REQUEST]
    assert registry.shown("key-1", notes)[1] == note(ANOTHER_REQUEST)


def test_without_keys_every_id_is_shown() -> None:
    notes = [note("a-0-0"), note("never-seen-0-0")]
    assert RequestRegistry().shown("", notes) == notes
