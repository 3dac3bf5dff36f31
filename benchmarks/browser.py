"""Drives a headless Chromium over its DevTools pipe: opens pages, runs scripts in them, presses keys, takes pictures.

It speaks the DevTools protocol (https://chromedevtools.github.io/devtools-protocol/) over two pipes, so that it needs
neither a port nor a package. Knows nothing of what is on a page. Invariants: nothing of the browser is left when the
context ends, its profile included; an error in a script of ours is raised here; what a page logs, violates or asks of
the network is kept for whoever wants to see it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
ANSWER_SECONDS = 30.0
POLL_SECONDS = 0.02
KEY_CODES = {"Enter": 13, "Escape": 27, "Tab": 9, "End": 35, "Home": 36, "PageUp": 33, "PageDown": 34} | {
    f"Arrow{way}": code for way, code in (("Left", 37), ("Up", 38), ("Right", 39), ("Down", 40))
}


class BrowserError(Exception):
    """The browser did not do what it was told, or a script on a page failed."""


def find_chromium() -> str | None:
    """The path of an installed Chromium, or None."""
    return next((path for path in map(shutil.which, NAMES) if path is not None), None)


class Browser:
    """One browser with an empty profile, from entering the context until it ends."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._answers: dict[int, dict[str, Any]] = {}
        self._arrived = threading.Condition()
        self._tabs: dict[str, Tab] = {}
        self._last_id = 0
        self._ended = False

    def __enter__(self) -> Self:
        self._profile = tempfile.TemporaryDirectory(prefix="octavo-browser-", ignore_cleanup_errors=True)
        their_input, our_output = os.pipe()
        our_input, their_output = os.pipe()
        command = (self._path, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank")
        self._process = subprocess.Popen(
            # the protocol is spoken on descriptors 3 and 4
            ["bash", "-c", f'exec "$@" 3<&{their_input} 4>&{their_output}', "browser", *command],
            pass_fds=(their_input, their_output),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(their_input)
        os.close(their_output)
        self._output = os.fdopen(our_output, "wb", buffering=0)
        self._input = os.fdopen(our_input, "rb", buffering=0)
        self._reader = threading.Thread(target=self._read, name="browser", daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(ANSWER_SECONDS)
        self._output.close()
        self._input.close()
        self._profile.cleanup()

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False, script: str = "") -> Tab:
        """A new tab of so many CSS pixels that has loaded ``url``; ``script`` runs before those of the page."""
        target = self.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = self._tabs[session] = Tab(self, target, session)
        for domain in ("Page", "Runtime", "Network", "Log", "Audits"):
            tab.send(f"{domain}.enable")
        tab.resize(width, height)
        tab.emulate(dark=dark)
        if script:
            tab.send("Page.addScriptToEvaluateOnNewDocument", {"source": script})
        tab.load(url)
        return tab

    def send(self, method: str, params: dict[str, Any] | None = None, session: str | None = None) -> dict[str, Any]:
        """One command and its answer. Raises BrowserError for one that fails, or has no answer in time."""
        with self._arrived:
            self._last_id += 1
            number = self._last_id
            message: dict[str, Any] = {"id": number, "method": method, "params": params or {}}
            if session is not None:
                message["sessionId"] = session
            self._output.write(json.dumps(message).encode() + b"\0")
            if not self._arrived.wait_for(lambda: number in self._answers or self._ended, ANSWER_SECONDS):
                raise BrowserError(f"no answer to {method} in {ANSWER_SECONDS:g} s")
            answer = self._answers.pop(number, {"error": {"message": "the browser has ended"}})
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        return dict(answer["result"])

    def _read(self) -> None:
        """Sort what comes, on a thread: answers by their number, events by their tab."""
        rest = b""
        while piece := self._input.read(1 << 16):
            *whole, rest = (rest + piece).split(b"\0")
            with self._arrived:
                for text in whole:
                    message = json.loads(text)
                    if "id" in message:
                        self._answers[message["id"]] = message
                    elif (tab := self._tabs.get(message.get("sessionId", ""))) is not None:
                        tab.take(message["method"], message["params"])
                self._arrived.notify_all()
        with self._arrived:
            self._ended = True
            self._arrived.notify_all()


class Tab:
    """One page. ``complaints`` are its console errors, uncaught exceptions and violations of its policy; ``asked`` the
    addresses that it asked the network for.
    """

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self._browser = browser
        self._target = target
        self._session = session
        self._num_loads = 0
        self.complaints: list[str] = []
        self.asked: list[str] = []

    def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._browser.send(method, params, self._session)

    def take(self, method: str, params: dict[str, Any]) -> None:
        """An event of this tab; called on the reading thread."""
        if method == "Page.loadEventFired":
            self._num_loads += 1
        elif method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(one.get("value", one.get("description"))) for one in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Audits.issueAdded" and params["issue"]["code"] == "ContentSecurityPolicyIssue":
            self.complaints.append(json.dumps(params["issue"]["details"]))

    def load(self, url: str) -> None:
        """Go to a page and wait until it has loaded."""
        before = self._num_loads
        self.send("Page.navigate", {"url": url})
        self._wait(lambda: self._num_loads > before, f"load {url}", ANSWER_SECONDS)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, or of its promise, as JSON has it. Raises BrowserError where it throws."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.send("Runtime.evaluate", asked)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserError(f"{expression}: {details.get('exception', {}).get('description') or details['text']}")
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 20.0) -> Any:
        """Ask until an expression is true; its value."""
        values: list[Any] = []

        def holds() -> bool:
            values[:] = [self.evaluate(expression)]
            return bool(values[0])

        self._wait(holds, expression, seconds)
        return values[0]

    def _wait(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise BrowserError(f"not in {seconds:g} s: {what}; the page complains: {self.complaints}")
            time.sleep(POLL_SECONDS)

    def text(self, selector: str) -> str:
        """What is written in the first such element, as it is shown."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """Click in the middle of an element, once it is scrolled into view."""
        x, y = self.evaluate(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)}); "
            "node.scrollIntoView({block: 'nearest'}); const box = node.getBoundingClientRect(); "
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self.click_at(x, y)

    def click_at(self, x: float, y: float) -> None:
        self.point(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.send(
                "Input.dispatchMouseEvent",
                {"type": kind, "x": x, "y": y, "button": "left", "buttons": 1, "clickCount": 1},
            )

    def point(self, x: float, y: float) -> None:
        """Move the mouse to a point of the window."""
        self.send("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})

    def press(self, *keys: str) -> None:
        """Press and release keys by their DOM names, such as ArrowLeft, Enter or n."""
        for key in keys:
            code = KEY_CODES.get(key, ord(key.upper()[0]))
            typed = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
            named = {"key": key, "windowsVirtualKeyCode": code}
            self.send("Input.dispatchKeyEvent", {"type": "keyDown" if typed else "rawKeyDown", **named, **typed})
            self.send("Input.dispatchKeyEvent", {"type": "keyUp", **named})

    def type(self, text: str) -> None:
        """Put a text where the focus is."""
        self.send("Input.insertText", {"text": text})

    def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        """Make the window so large, in CSS pixels, of ``scale`` device pixels each."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", metrics)

    def emulate(self, *, dark: bool = False, reduced_motion: bool = False) -> None:
        """What the system would say of the user's wishes."""
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if reduced_motion else "no-preference"},
        ]
        self.send("Emulation.setEmulatedMedia", {"features": features})

    def picture(self, path: Path) -> None:
        """A PNG of the window."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", {"format": "png"})["data"]))

    def close(self) -> None:
        self._browser.send("Target.closeTarget", {"targetId": self._target})
