"""The page map's feed on a real server under load: what it shows is what there is."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.slow

NUM_PAGES = 120
ADMIN = {"x-api-key": "admin"}
STATES = ("free", "cached", "held")


@pytest.fixture(scope="module")
def server(start_server: Callable, tiny_gemma3_dir: Path):
    return start_server(
        str(tiny_gemma3_dir), "--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", "512",
        "--num-gpu-blocks-override", str(NUM_PAGES), "--admin-key", "admin",
    )  # fmt: skip


class Feed:
    """What a watcher of ``/dashboard/feed`` knows after each tick."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.iter_lines()
        self.layout: dict[str, Any] = {}
        self.requests: dict[str, Any] = {}
        self.stats: dict[str, Any] = {}
        self.engine: list[str] = []
        self.cells: dict[int, bytes] = {}

    def event(self) -> str:
        """Take the next event; its name."""
        name = next(self._lines).removeprefix("event: ")
        body = json.loads(next(self._lines).removeprefix("data: "))
        assert next(self._lines) == ""
        if name == "pages":
            cells = base64.b64decode(body["cells"])
            self.cells |= {body["first"] + page: cells[8 * page : 8 * page + 8] for page in range(len(cells) // 8)}
        elif name == "engine":
            self.engine.append(body["state"])
        else:
            if name == "layout":
                self.cells = {}
            setattr(self, name, body)
        return name

    def ticks(self) -> Iterator[None]:
        """Ends a turn at every whole look at the pages."""
        while True:
            if self.event() == "stats":
                yield

    @property
    def handles(self) -> Counter[int]:
        """How many pages show which holder."""
        return Counter(int.from_bytes(cell[4:8], "little") for cell in self.cells.values())


@contextlib.contextmanager
def watching(server: Any) -> Iterator[Feed]:
    with server.http.stream("GET", "/dashboard/feed", headers=ADMIN) as response:
        assert response.status_code == 200
        yield Feed(response)


@contextlib.contextmanager
def load(server: Any, *, streams: int, max_tokens: int) -> Iterator[None]:
    """So many clients that ask again and again for two samples of a prompt, under ids of their own."""
    over = threading.Event()

    def client(number: int) -> None:
        prompt = [5 + number] * 40
        body = {"model": "tiny", "prompt": prompt, "n": 2, "max_tokens": max_tokens, "ignore_eos": True}
        with httpx.Client(base_url=server.url, timeout=120) as http:
            while not over.is_set():
                http.post("/v1/completions", json=body, headers={"x-request-id": f"client-{number}"})

    threads = [threading.Thread(target=client, args=(number,)) for number in range(streams)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def assert_adds_up(feed: Feed) -> None:
    """The cells, the numbers beside them and the sequences that own them tell the same."""
    states = Counter(STATES[cell[0]] for cell in feed.cells.values())
    pages = feed.stats["pages"]
    assert {name: states[name] for name in STATES} == {name: pages[name] for name in STATES}
    assert sum(states.values()) == pages["total"] == NUM_PAGES == feed.layout["num_pages"]
    for number, group in enumerate(feed.stats["groups"]):
        own = [cell for cell in feed.cells.values() if cell[1] == number]
        assert group["name"] == feed.layout["groups"][number]
        assert group["held"] == sum(cell[0] == 2 for cell in own)
        assert group["cached"] == sum(cell[0] == 1 for cell in own)
        assert group["shared"] == sum(cell[3] > 1 for cell in own)
    assert all((cell[0] == 2) == (cell[3] > 0) == (cell[4:8] != bytes(4)) for cell in feed.cells.values())
    assert all(cell[2] <= feed.layout["block_size"] for cell in feed.cells.values())
    sequences = {one["handle"]: one for one in feed.requests["sequences"] if one["handle"]}
    shown = feed.handles
    del shown[0]
    assert set(shown) <= set(sequences)
    assert all(count <= sequences[handle]["pages"] for handle, count in shown.items())
    references = sum(cell[3] for cell in feed.cells.values())
    assert references == sum(one["pages"] for one in feed.requests["sequences"])
    assert feed.requests["total"] == feed.stats["running"] + feed.stats["waiting"] + sum(
        one["status"] in ("pending", "finished") for one in feed.requests["sequences"]
    )


def test_every_look_adds_up_under_load_and_nothing_is_held_afterwards(server) -> None:
    with watching(server) as feed:
        ticks = feed.ticks()
        with load(server, streams=5, max_tokens=100):
            most = 0
            for _ in range(12):
                next(ticks)
                assert_adds_up(feed)
                most = max(most, feed.stats["pages"]["held"])
                for one in feed.requests["sequences"]:
                    assert one["request_id"].startswith("client-")
                    assert one["id"].startswith("cmpl-")
            assert most > 10
        while feed.requests["total"]:
            next(ticks)
            assert_adds_up(feed)
        assert feed.stats["pages"]["held"] == 0
        assert feed.stats["pages"]["cached"] > 0
        assert feed.requests == {"total": 0, "sequences": []}
        assert set(feed.engine) <= {"silent"}  # where the machine has better things to do


def test_owners_of_a_page_and_pages_of_an_owner_agree_with_the_cells(server) -> None:
    body = {"model": "tiny", "prompt": [9] * 40, "n": 2, "max_tokens": 400, "ignore_eos": True, "stream": True}
    with (
        watching(server) as feed,
        server.http.stream("POST", "/v1/completions", json=body, headers={"x-request-id": "mine"}) as response,
    ):
        lines = response.iter_lines()  # kept, for who drops it has left
        next(lines)
        ticks = feed.ticks()
        next(ticks)
        while len(feed.requests["sequences"]) < 2:
            next(ticks)
        assert_adds_up(feed)
        name, other = (one["id"] for one in feed.requests["sequences"])
        detail = server.http.get(f"/dashboard/requests/{name}", headers=ADMIN).json()
        assert (detail["id"], detail["request_id"], detail["status"]) == (name, "mine", "running")
        assert set(detail["pages"]) == set(feed.layout["groups"])
        shared = detail["pages"]["full"][0]  # the prompt's first page
        page = server.http.get(f"/dashboard/pages/{shared}", headers=ADMIN).json()
        assert page["state"] == "held"
        assert page["group"] == "full"
        assert page["ref_count"] == 2
        assert page["fill"] == feed.layout["block_size"]
        assert sorted(page["owners"], key=lambda owner: owner["id"]) == [
            {"id": one, "request_id": "mine"} for one in sorted((name, other))
        ]
        assert detail["ledger"]["peak_pages"] >= len(detail["pages"]["full"])
        with httpx.Client(base_url=server.url) as plain:
            assert plain.get(f"/dashboard/requests/{name}").status_code == 401
    server.wait_settled()
    assert server.http.get(f"/dashboard/requests/{name}", headers=ADMIN).status_code == 404
    assert server.http.get(f"/dashboard/pages/{shared}", headers=ADMIN).json()["owners"] == []


def test_an_engine_killed_while_watched_is_told_and_then_its_successor(server) -> None:
    with watching(server) as feed:
        ticks = feed.ticks()
        next(ticks)
        assert_adds_up(feed)
        os.kill(server.engine_pid(), signal.SIGKILL)
        feed.layout = {}
        while not feed.layout:
            next(ticks)
        assert set(feed.engine) == {"restarting"}
        assert_adds_up(feed)
        assert feed.stats["pages"]["free"] == NUM_PAGES


def test_a_watcher_that_reads_nothing_holds_up_nobody_and_its_end_is_noticed(server) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(16):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(b"GET /dashboard/feed HTTP/1.1\r\nHost: x\r\nX-Api-Key: admin\r\n\r\n")
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        refused = server.http.get("/dashboard/feed", headers=ADMIN)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_watchers")
        answer = server.http.post("/v1/completions", json={"model": "tiny", "prompt": [9, 9], "max_tokens": 20})
        assert answer.status_code == 200

    def place_is_free() -> bool:
        with server.http.stream("GET", "/dashboard/feed", headers=ADMIN) as response:
            return response.status_code == 200

    server.wait_until(place_is_free, "rid of watchers that left")


def test_a_shutdown_does_not_wait_for_watchers_and_tells_them(start_server: Callable, tiny_llama_dir: Path) -> None:
    server = start_server(
        str(tiny_llama_dir), "--dtype", "float32", "--num-gpu-blocks-override", str(NUM_PAGES),
        "--shutdown-timeout", "60",
    )  # fmt: skip
    with server.http.stream("GET", "/dashboard/feed") as response:
        feed = Feed(response)
        next(feed.ticks())
        server.process.send_signal(signal.SIGTERM)
        while not feed.engine:
            feed.event()
        assert feed.engine == ["closed"]
        assert list(feed._lines) == []
    assert server.process.wait(20) == 0
    assert "Traceback" not in server.log.read_text()
