"""The page map in use: keys, themes, narrow windows, and a server that refuses, restarts or goes away."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.e2e.browser.feed_server import CACHED, FREE, HELD, FakePool, FeedServer

NUM_PAGES = 1000


@pytest.fixture
def server() -> Iterator[FeedServer]:
    with FeedServer(FakePool(NUM_PAGES, churn=0)) as server:
        yield server


def give(server: FeedServer, page: int, state: int, group: int, fill: int, ref_count: int, holder: int) -> None:
    """Make a page what a test needs, before anybody looks."""
    server.pool.cells[8 * (page - 1) : 8 * page] = bytes((state, group, fill, ref_count)) + holder.to_bytes(4, "little")


def test_keys_walk_over_pages_say_what_they_are_and_pin_them(server: FeedServer, open_map: Callable) -> None:
    give(server, 1, HELD, 1, 5, 2, 7)
    give(server, 2, FREE, 0, 0, 0, 0)
    give(server, 3, CACHED, 0, 16, 0, 0)
    tab = open_map(server.url)
    tab.evaluate("byId('zoom-in').focus()")
    tab.press("Tab")
    assert tab.evaluate("document.activeElement.id") == "map"
    assert tab.evaluate("getComputedStyle(byId('map')).outlineStyle") == "solid"
    assert tab.evaluate("byId('spoken').getAttribute('aria-live')") == "polite"
    tab.wait("byId('spoken').textContent === "
             "'Page 1, held, group window 512, 5 of 16 tokens, held by req-7, shared by 2'")  # fmt: skip
    tab.press("ArrowRight")
    tab.wait("byId('spoken').textContent === 'Page 2, free'")
    tab.press("ArrowRight", "Enter")
    tab.wait("byId('spoken').textContent === 'Page 3, cached, group full, 16 of 16 tokens'")
    assert tab.evaluate("dashboard.map.pinned") == 3
    assert "Page 3" in tab.text("#card")
    columns = tab.evaluate("dashboard.map.grid.columns")
    tab.press("ArrowDown")
    assert tab.evaluate("dashboard.map.cursor") == 3 + columns
    tab.press("End")
    assert tab.evaluate("dashboard.map.cursor") == 2 * columns
    tab.press("ArrowRight", "ArrowRight", "Home")
    assert tab.evaluate("dashboard.map.cursor") == 2 * columns + 1
    tab.press("PageDown", "PageUp", "PageUp")
    assert tab.evaluate("dashboard.map.cursor") == 1
    tab.press("Escape")
    assert tab.evaluate("dashboard.map.pinned") == 0


def test_n_and_p_go_to_the_next_and_previous_page_of_the_same_holder(server: FeedServer, open_map: Callable) -> None:
    for page in (1, 400, 999):
        give(server, page, HELD, 0, 16, 1, 99)
    tab = open_map(server.url)
    tab.evaluate("byId('map').focus()")
    visited = []
    for key in ("n", "n", "n", "p"):
        tab.press(key)
        visited.append(tab.evaluate("dashboard.map.cursor"))
    assert visited == [400, 999, 1, 999]


def test_colouring_by_owner_gives_the_pages_of_a_sequence_one_colour_in_every_group(
    server: FeedServer, open_map: Callable
) -> None:
    for page, group, holder in ((1, 0, 5), (2, 1, 5), (3, 0, 6)):
        give(server, page, HELD, group, 16, 1, holder)
    tab = open_map(server.url)
    tab.click("#colouring label:nth-of-type(2)")
    colours = tab.evaluate("""new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => {
      const { grid, canvas: { canvas } } = dashboard.map;
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, grid.cell);
      const middle = (page) => 4 * ((grid.cell >> 1) * canvas.width
        + grid.gutter + grid.column(page) * grid.cell + (grid.cell >> 1));
      resolve([1, 2, 3].map((page) => data.slice(middle(page), middle(page) + 3).join()));
    })))""")
    assert colours[0] == colours[1] != colours[2]


def test_a_window_of_360_pixels_scrolls_downwards_only(server: FeedServer, open_map: Callable) -> None:
    tab = open_map(server.url, width=360, height=740)
    tab.evaluate("dashboard.pick('seq-3')")
    tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert tab.evaluate("document.documentElement.scrollWidth") == 360
    wide = tab.evaluate(
        "[...document.querySelectorAll('main *, header *, footer *')].filter((node) => !node.closest('.unseen') && "
        "getComputedStyle(node).position !== 'absolute' && node.getBoundingClientRect().right > 360.5)"
        ".map((node) => node.id || node.className || node.tagName)"
    )
    assert wide == []


CONTRASTS = """(() => {
  const rgb = (name) => {
    const probe = document.body.appendChild(document.createElement('span'));
    probe.style.color = `var(--${name})`;
    const values = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(Number);
    probe.remove();
    return values;
  };
  const luminance = (colour) => colour
    .map((value) => value / 255)
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
  const contrast = (first, second) => {
    const [light, dark] = [luminance(rgb(first)), luminance(rgb(second))].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };
  const pairs = (names, grounds) =>
    names.flatMap((name) => grounds.map((ground) => [name, ground, contrast(name, ground)]));
  return {
    text: pairs(['ink', 'muted', 'alarm', 'good'], ['paper', 'panel', 'raised']),
    shapes: pairs(['held', 'cached', 'output', 'prompt', 'edge', 'focus', 'group-0', 'group-1', 'group-2', 'group-3',
      'group-4', 'group-5'], ['panel']),
  };
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_and_shapes_have_the_contrast_of_wcag_aa(server: FeedServer, open_map: Callable, dark: bool) -> None:
    tab = open_map(server.url, dark=dark)
    contrasts = tab.evaluate(CONTRASTS)
    assert [pair for pair in contrasts["text"] if pair[2] < 4.5] == []
    assert [pair for pair in contrasts["shapes"] if pair[2] < 3] == []


def test_the_theme_follows_the_system_until_the_button_is_pressed(server: FeedServer, open_map: Callable) -> None:
    tab = open_map(server.url)
    panel = "getComputedStyle(document.querySelector('.pages')).backgroundColor"
    light, canvas_light = tab.evaluate(panel), tab.evaluate("dashboard.palette.panel.join()")
    tab.emulate(dark=True)
    tab.wait(f"dashboard.palette.panel.join() !== '{canvas_light}'")
    dark = tab.evaluate(panel)
    assert dark != light
    tab.click("#theme")
    assert tab.text("#theme") == "◐ light"
    assert tab.evaluate(panel) == light
    tab.click("#theme")
    tab.emulate(dark=False)
    assert tab.evaluate(panel) == dark
    tab.click("#theme")
    assert tab.evaluate(panel) == light


def test_who_wants_less_motion_gets_none(server: FeedServer, open_map: Callable) -> None:
    tab = open_map(server.url)
    moving = (
        "(dashboard.connection.show('connecting', {}), "
        "[...document.querySelectorAll('*')].filter((node) => { const style = getComputedStyle(node); "
        "return style.animationName !== 'none' || style.transitionDuration !== '0s'; }).length)"
    )
    assert tab.evaluate(moving) > 0
    tab.emulate(reduced_motion=True)
    assert tab.evaluate(moving) == 0


def test_a_server_with_a_key_asks_for_it_and_the_tab_keeps_it(server: FeedServer, open_map: Callable) -> None:
    server.refuse = lambda key: None if key == "s3cret" else (401, "the admin key is needed")
    tab = open_map(server.url, is_live=False, refusals=(401,))
    tab.wait("!byId('key-form').hidden")
    assert tab.text("#connection") == "key needed"
    assert tab.evaluate("document.activeElement.id") == "key"
    tab.type("wrong")
    tab.press("Enter")
    tab.wait("byId('notice-text').textContent === \"This is not the server's admin key.\"")
    tab.type("Schlüssel \N{KEY}")  # which no header can carry
    tab.press("Enter")
    tab.wait("dashboard.feed.state === 'key' && byId('key').value === '' && !byId('key-form').hidden")
    tab.type("s3cret")
    tab.click("#key-form button")
    tab.wait("dashboard.feed.state === 'live' && byId('notice').hidden")
    assert tab.evaluate("Object.values(sessionStorage)") == ["s3cret"]
    assert "s3cret" not in str(tab.evaluate("[JSON.stringify(localStorage), document.cookie, location.href]"))
    tab.load(f"{server.url}/dashboard")
    tab.wait("dashboard.feed.state === 'live'")


def test_a_text_of_the_engine_names_requests_as_their_clients_do_whatever_they_are_called(
    server: FeedServer, open_map: Callable
) -> None:
    tab = open_map(server.url)
    # at once, as the next tick of the feed brings the server's own requests
    text = tab.evaluate("""dashboard.requests.take({ total: 2, sequences: [
      { id: "cmpl-1-0-0", request_id: "$& $' cmpl-2-0-0", handle: 1, status: "running" },
      { id: "cmpl-2-0-0", request_id: "b", handle: 2, status: "running" }] }),
      dashboard.requests.withNames('It waits behind cmpl-1-0-0, cmpl-2-0-0 and cmpl-1-0-00.')""")
    assert text == "It waits behind $& $' cmpl-2-0-0, b and cmpl-1-0-00."


def test_a_server_without_an_admin_key_says_how_to_get_one(server: FeedServer, open_map: Callable) -> None:
    server.refuse = lambda key: (403, "start the server with --admin-key to see its pages")
    tab = open_map(server.url, is_live=False, refusals=(403,))
    tab.wait("!byId('notice').hidden")
    assert "start the server with --admin-key to see its pages" in tab.text("#notice")
    server.refuse = lambda key: None
    tab.click("#retry")
    tab.wait("dashboard.feed.state === 'live' && byId('notice').hidden")


def test_a_lost_server_is_asked_again_ever_later_until_it_is_back(server: FeedServer, open_map: Callable) -> None:
    tab = open_map(server.url, refusals=(500,))
    tab.evaluate(
        "waits = []; dashboard.feed.onState = (state, detail) => {"
        " if (state === 'lost') waits.push(detail.seconds); dashboard.connection.show(state, detail); }"
    )
    server.refuse = lambda key: (500, "out of order")
    server.cut.set()
    tab.wait("waits.length >= 3")
    assert tab.evaluate("waits.slice(0, 3)") == [0.5, 1, 2]
    assert tab.text("#connection") == "reconnecting"
    assert tab.evaluate("document.body.classList.contains('is-stale')")
    assert (
        tab.evaluate("dashboard.table.counts[0]") == server.pool.counts()["free"]
    )  # what was known last is still shown
    server.refuse = lambda key: None
    tab.click("#retry")
    tab.wait("dashboard.feed.state === 'live' && !document.body.classList.contains('is-stale')")


def test_an_engine_that_restarts_is_told_and_its_new_pool_is_shown(server: FeedServer, open_map: Callable) -> None:
    tab = open_map(server.url)
    server.engine_state = "restarting"
    tab.wait("byId('connection-text').textContent === 'engine restarting'")
    assert "Every page will be free" in tab.text("#notice")
    server.cut.set()  # as after the restart: a layout comes first
    server.pool = FakePool(64, churn=0)
    server.engine_state = "ready"
    tab.wait("dashboard.table.numPages === 64 && byId('connection-text').textContent === 'live'")
    assert tab.evaluate("byId('notice').hidden")
