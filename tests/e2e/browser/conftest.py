"""A real Chromium, and pages in it that must neither complain nor ask anybody but their own server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from benchmarks.browser import Browser, Tab, find_chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium is installed (Debian package: chromium)")
    with Browser(path) as browser:
        yield browser


@pytest.fixture
def open_map(browser: Browser) -> Iterator[Callable[..., Tab]]:
    """Opens the page map of a server, whose address must be the only one that the page asks for, without a complaint.

    ``refusals``: what the browser logs of answers with these statuses is no complaint.
    """
    opened: list[tuple[Tab, str, tuple[int, ...]]] = []

    def open_map(url: str, *, refusals: tuple[int, ...] = (), is_live: bool = True, **window: object) -> Tab:
        tab = browser.open(f"{url}/dashboard", **window)  # type: ignore[arg-type]
        opened.append((tab, url, refusals))
        if is_live:
            tab.wait("dashboard.stats !== null && dashboard.map.canvas.numDraws > 0")
        return tab

    yield open_map
    for tab, url, refusals in opened:
        tab.close()
        expected = tuple(f"the server responded with a status of {status}" for status in refusals)
        complaints = [text for text in tab.complaints if not any(one in text for one in expected)]
        assert complaints == []
        assert [address for address in tab.asked if not address.startswith(f"{url}/")] == []
