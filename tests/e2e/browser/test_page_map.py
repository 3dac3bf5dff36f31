"""The page map of a real server under load: what it shows is what the engine holds."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ADMIN_KEY = "an-admin-key"
WITH_KEY = f"sessionStorage.setItem('octavo-admin-key', '{ADMIN_KEY}')"
BLOCK_SIZE = 16
NUM_PAGES = 150  # of the tiny Gemma 3: a page per full layer, six per windowed block, of which a sequence holds three
HOLDER_TOKENS = 1200  # from there on to the whole context, to half of it and so on


@pytest.fixture(scope="module")
def server(start_server: Callable, tiny_gemma3_dir: Path):
    return start_server(
        str(tiny_gemma3_dir), "--served-model-name", "tiny", "--dtype", "float32", "--threads", "1",
        "--num-gpu-blocks-override", str(NUM_PAGES), "--max-model-len", "2048", "--max-num-seqs", "1",
        "--admin-key", ADMIN_KEY,
    )  # fmt: skip


@pytest.fixture
def ask(server, settled: Callable) -> Iterator[Callable[[str, int], http.client.HTTPConnection]]:
    """Sends a prompt of so many tokens whose answer has no end; closing the connection ends it."""
    settled(server)
    asked: list[http.client.HTTPConnection] = []

    def ask(name: str, tokens: int) -> http.client.HTTPConnection:
        body = {
            "model": "tiny", "prompt": [1 + index % 250 for index in range(tokens)], "max_tokens": 1_000_000,
            "ignore_eos": True, "context_overflow": "rotate",
        }  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        asked.append(connection)
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json", "x-request-id": name}
        )
        return connection

    yield ask
    for connection in asked:
        connection.close()


def test_cells_by_state_are_those_of_the_feed_at_every_tick_and_of_metrics_at_rest(
    server, ask: Callable, open_map: Callable
) -> None:
    tab = open_map(server.url, script=WITH_KEY)
    holder = ask("holder", HOLDER_TOKENS)
    tab.wait("dashboard.table.counts[2] > 0")
    tab.evaluate("""(() => {
      ticks = [];
      const take = dashboard.feed.onEvent;
      dashboard.feed.onEvent = (name, data) => {
        take(name, data);
        if (name !== 'stats') return;
        const { free, cached, held, shared } = data.pages;
        ticks.push([[...dashboard.table.counts, dashboard.table.numShared], [free, cached, held, shared]]);
      };
    })()""")
    tab.wait("ticks.length >= 6", 20)
    ticks = tab.evaluate("ticks")
    assert [cells for cells, _ in ticks] == [told for _, told in ticks]
    assert all(sum(told[:3]) == NUM_PAGES and told[2] > 0 for _, told in ticks)
    assert len({tuple(told) for _, told in ticks}) > 1  # it was under load

    holder.close()
    server.wait_settled()
    tab.wait("dashboard.table.counts[2] === 0")
    tab.wait("dashboard.requests.sequences.length === 0")
    assert tab.evaluate("dashboard.table.counts") == [server.pages("free"), server.pages("cached"), 0]
    assert tab.text("#requests-none") == "Nothing runs or waits."
    assert tab.text("#held-count") == "0"


def test_a_page_under_the_pointer_tells_its_owner(server, ask: Callable, open_map: Callable) -> None:
    tab = open_map(server.url, script=WITH_KEY)
    ask("holder", HOLDER_TOKENS)
    # a page of the group that sees everything: it stays until the context is full
    page = tab.wait(
        "Array.from({ length: dashboard.table.numPages }, (_, index) => index + 1)"
        ".find((page) => dashboard.table.state(page) === 2 && dashboard.table.group(page) === 0)"
    )
    x, y, size = tab.evaluate(f"""(() => {{
      const {{ x, y, size }} = dashboard.map.grid.place({page});
      const box = dashboard.map.sheet.getBoundingClientRect();
      return [box.x + x, box.y + y, size];
    }})()""")
    tab.point(x + size / 2, y + size / 2)
    tab.wait("document.querySelector('.card-owner')?.textContent === 'holder'")
    told = tab.text("#card").splitlines()
    assert told[0] == f"Page {page}"
    assert "held" in told
    assert tab.evaluate("dashboard.table.groupNames[0]") in told
    assert f"16 of {BLOCK_SIZE} tokens" in told
    tab.point(1, 1)
    tab.wait("byId('card').hidden")
    tab.click_at(x + size / 2, y + size / 2)
    tab.wait("document.querySelector('button.card-owner') !== null")
    tab.click("button.card-owner")
    tab.wait("byId('request-title').textContent === 'holder'")


def test_a_picked_request_lights_up_its_pages_and_shows_its_ledger(server, ask: Callable, open_map: Callable) -> None:
    tab = open_map(server.url, script=WITH_KEY)
    ask("holder", HOLDER_TOKENS)
    tab.wait("dashboard.requests.sequences.some((one) => one.pages > 0)")
    tab.click("#requests button")
    tab.wait("document.querySelector('.chip') !== null && dashboard.map.canvas.picked !== null")
    groups = tab.evaluate("dashboard.table.groupNames")
    assert [tab.text(f".group-head:nth-of-type({place})").split()[0] for place in (2, 4)] == groups
    assert tab.text(".request-text").startswith("It is running: ")
    assert "Most pages" in tab.text("#request-body")
    lit, told = tab.evaluate(
        "[dashboard.map.canvas.picked.size, [...document.querySelectorAll('.group-head')]"
        ".map((one) => Number.parseInt(one.lastChild.textContent))]"
    )
    assert lit == sum(told) > 0
    tab.click("#request-close")
    tab.wait("byId('request').hidden && dashboard.map.canvas.picked === null")


def test_a_waiting_request_tells_why_it_waits_and_goes_when_it_ends(server, ask: Callable, open_map: Callable) -> None:
    tab = open_map(server.url, script=WITH_KEY)
    holder = ask("holder", HOLDER_TOKENS)
    tab.wait("dashboard.table.counts[2] > 0")
    waiter = ask("waiter", 100)
    tab.wait("[...document.querySelectorAll('.request-status')].some((one) => "
             "one.textContent === 'waits, no. 1: as many run as may')")  # fmt: skip
    tab.click("#requests li:nth-of-type(2) button")
    tab.wait("document.querySelector('.request-text') !== null")
    assert tab.text("#request-title") == "waiter"
    text = tab.text(".request-text")
    assert text.startswith("It waits at position 1 for ")
    assert ": as many sequences run as may (--max-num-seqs)" in text
    assert "It holds no page now." in tab.text("#request-body")
    waiter.close()
    tab.wait("document.querySelector('.request-over') !== null")
    assert tab.evaluate("document.querySelectorAll('#requests li').length") == 1
    holder.close()


def test_without_the_admin_key_the_map_shows_nothing_and_asks_for_it(server, open_map: Callable) -> None:
    tab = open_map(server.url, is_live=False, refusals=(401,))
    tab.wait("!byId('key-form').hidden")
    assert tab.evaluate("dashboard.table") is None
    tab.type(ADMIN_KEY)
    tab.press("Enter")
    tab.wait("dashboard.stats !== null && byId('notice').hidden")
    assert tab.evaluate("dashboard.table.numPages") == NUM_PAGES
