"""Takes the pictures of the page map that the docs show: a server under real load, seen by a headless Chromium.

    python -m benchmarks.page_map_pictures --out docs/images

It starts `octavo serve` with the default model, or one that is named, in a pool too small for the load, so that pages
are shared, cached and evicted, and requests wait. Knows the page's ids, not how it draws.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shlex
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.browser import Browser, BrowserError, Tab, find_chromium
from benchmarks.started_server import StartedServer

START = "{octavo} serve {model} --port {port} --num-gpu-blocks-override {pages} --max-num-seqs 24 --max-model-len 2048"
OCTAVO = f"{shlex.quote(sys.executable)} -c 'import sys; from server.cli import main; sys.exit(main())'"
NUM_PAGES = 1400
WORKERS = 12
DOCUMENT_TOKENS = 288
START_SECONDS = 300.0
LARGEST_FILE = 200_000


class Load:
    """Clients that ask one question after another about a few documents, so that beginnings are shared."""

    def __init__(self, url: str, model: str) -> None:
        self._url = url
        self._model = model
        self._stopping = threading.Event()
        self._numbers = itertools.count(1)
        self._random = random.Random(8)
        self._documents = [[self._random.randrange(1000, 200_000) for _ in range(DOCUMENT_TOKENS)] for _ in range(4)]

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(WORKERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()

    def _work(self) -> None:
        while not self._stopping.is_set():
            number = next(self._numbers)
            rng = random.Random(number)
            question = [rng.randrange(1000, 200_000) for _ in range(rng.randrange(16, 240))]
            body = {
                "model": self._model,
                "prompt": rng.choice(self._documents) + question,
                "max_tokens": rng.randrange(60, 360),
                "n": 3 if number % 5 == 0 else 1,
                "ignore_eos": True,
                "stream": True,
                "seed": number,
            }
            self._ask(body, f"question-{number:04d}")

    def _ask(self, body: dict[str, object], name: str) -> None:
        headers = {"content-type": "application/json", "x-request-id": name}
        request = urllib.request.Request(f"{self._url}/v1/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as response:
            for _ in response:
                if self._stopping.is_set():
                    return  # the client leaves, and its request ends


class Pictures:
    """The pictures of one server's page map, in the folder ``out``."""

    def __init__(self, browser: Browser, url: str, out: Path) -> None:
        self._browser = browser
        self._url = f"{url}/dashboard"
        self._out = out

    def open(self, width: int, height: int, *, dark: bool = False) -> Tab:
        tab = self._browser.open(self._url, width=width, height=height, dark=dark)
        tab.wait("dashboard.history.points.length > 1")
        return tab

    def light(self, tab: Tab) -> None:
        self._take(tab, "page-map-light.png")

    def dark(self, tab: Tab) -> None:
        """By owner, with the card of a page that several hold."""
        tab.emulate(dark=True)
        tab.click("#colouring label:nth-of-type(2)")
        x, y = tab.wait(
            "(() => { const { table, map } = dashboard; const columns = map.grid.columns;"
            " for (let page = 4 * columns; page <= table.numPages; page += 1)"
            " if (table.isShared(page) && map.grid.column(page) > columns / 3 && map.grid.column(page) < columns / 2) {"
            " const { x, y, size } = map.grid.place(page); const box = map.sheet.getBoundingClientRect();"
            " return [box.x + x + size / 2, box.y + y + size / 2]; } })()",
            30.0,
        )
        tab.point(x, y)
        tab.wait("!byId('card').hidden && document.querySelector('.card-owners') !== null")
        time.sleep(0.5)  # the owners are asked for once the pointer rests
        self._take(tab, "page-map-dark.png")
        tab.point(1, 1)
        tab.emulate()
        tab.click("#colouring label:nth-of-type(1)")

    def waiting(self, tab: Tab) -> None:
        """A request that waits for pages, if there is one in time, else one that waits."""
        chosen = "dashboard.requests.sequences.find((one) => one.wait_reason === 'pages')"
        try:
            tab.wait(f"{chosen} !== undefined", 60.0)
        except BrowserError:
            chosen = "dashboard.requests.sequences.find((one) => one.status === 'waiting')"
        tab.evaluate(f"dashboard.pick({chosen}.id)")
        tab.wait("document.querySelector('.request-text') !== null")
        self._take(tab, "page-map-waiting.png")
        tab.evaluate("dashboard.pick(null)")

    def running(self, tab: Tab) -> None:
        """The request with most pages, lit up."""
        tab.evaluate("dashboard.pick(dashboard.requests.sequences.toSorted((a, b) => b.pages - a.pages)[0].id)")
        tab.wait("dashboard.map.canvas.picked !== null && document.querySelector('.chip') !== null")
        self._take(tab, "page-map-running.png")
        tab.evaluate("dashboard.pick(null)")

    def phone(self) -> None:
        tab = self.open(390, 844)
        tab.wait("dashboard.history.points.length > 4")
        self._take(tab, "page-map-phone.png")
        tab.close()

    def _take(self, tab: Tab, name: str) -> None:
        time.sleep(0.3)  # for the frame that is due
        path = self._out / name
        tab.picture(path)
        size = path.stat().st_size
        print(f"{path}  {size / 1000:.0f} kB")
        if size > LARGEST_FILE:
            raise SystemExit(f"{path} is larger than {LARGEST_FILE / 1000:.0f} kB")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page_map_pictures", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="folder of the pictures")
    parser.add_argument("--model", default="", help="what to serve (the default model)")
    parser.add_argument("--pages", type=int, default=NUM_PAGES, help="pages of the pool (%(default)s)")
    parser.add_argument("--seconds", type=float, default=170.0, help="seconds of load before (%(default)s)")
    options = parser.parse_args(arguments)
    chromium = find_chromium()
    if chromium is None:
        parser.error("no Chromium is installed (Debian package: chromium)")
    options.out.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = START.format(
        octavo=OCTAVO, model=shlex.quote(options.model) if options.model else "", port=port, pages=options.pages
    )
    with StartedServer(command, url, START_SECONDS), Browser(chromium) as browser:
        with urllib.request.urlopen(f"{url}/v1/models") as response:
            model = json.load(response)["data"][0]["id"]
        with Load(url, model).running():
            pictures = Pictures(browser, url, options.out)
            tab = pictures.open(1440, 960)
            time.sleep(options.seconds)
            pictures.light(tab)
            pictures.dark(tab)
            pictures.running(tab)
            pictures.waiting(tab)
            pictures.phone()
            print(tab.text("#map-facts"))
            for complaint in tab.complaints:
                print(complaint)
    return 0


if __name__ == "__main__":
    sys.exit(main())
