"""FeedServer: the page map with a feed of made-up pages, so that pools of any size and any answer can be shown.

It speaks the contract of `server.dashboard` and has no engine behind it.
"""

from __future__ import annotations

import base64
import json
import random
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from server.dashboard.page_source import PageSource

CHUNK = 256
FREE, CACHED, HELD = 0, 1, 2
STATE_NAMES = ("free", "cached", "held")


class FakePool:
    """Pages that change at random, ``churn`` of them in a tick, held by ``num_sequences`` sequences."""

    def __init__(self, num_pages: int, *, churn: float = 0.05, num_sequences: int = 24, seed: int = 0) -> None:
        self.num_pages = num_pages
        self.churn = churn
        self.num_sequences = num_sequences
        self.random = random.Random(seed)
        self.cells = bytearray(8 * num_pages)
        self.ticks = 0
        for index in range(num_pages):
            self._draw(index)

    def _draw(self, index: int) -> None:
        rng = self.random
        state = rng.choices((FREE, CACHED, HELD), (2, 3, 5))[0]
        cell = bytes(8)
        if state == CACHED:
            cell = bytes((CACHED, rng.randrange(2), 16, 0, 0, 0, 0, 0))
        elif state == HELD:
            shared = rng.random() < 0.1
            fill = 16 if shared or rng.random() < 0.8 else rng.randrange(1, 16)
            holder = rng.randrange(1, self.num_sequences + 1)
            cell = bytes((HELD, rng.randrange(2), fill, 3 if shared else 1)) + holder.to_bytes(4, "little")
        self.cells[8 * index : 8 * index + 8] = cell

    def tick(self) -> None:
        """Change some pages."""
        self.ticks += 1
        for _ in range(int(self.churn * self.num_pages)):
            self._draw(self.random.randrange(self.num_pages))

    def chunks(self) -> list[bytes]:
        size = 8 * CHUNK
        return [bytes(self.cells[first : first + size]) for first in range(0, len(self.cells), size)]

    def counts(self) -> dict[str, int]:
        states = self.cells[0::8]
        shared = sum(1 for count in self.cells[3::8] if count > 1)
        return {
            "free": states.count(FREE),
            "cached": states.count(CACHED),
            "held": states.count(HELD),
            "total": self.num_pages,
            "shared": shared,
        }

    def layout(self) -> dict[str, Any]:
        return {
            "model": "made-up",
            "version": "0",
            "num_pages": self.num_pages,
            "block_size": 16,
            "page_bytes": 24576,
            "groups": ["full", "window 512"],
            "chunk": CHUNK,
            "max_model_len": 8192,
            "device": "cpu",
            "tick_seconds": 0.1,
        }

    def page(self, page: int) -> dict[str, Any]:
        state, group, fill, ref_count, *handle = self.cells[8 * page - 8 : 8 * page]
        holder = int.from_bytes(bytes(handle), "little")
        owners = [holder + more for more in range(ref_count)] if state == HELD else []
        return {
            "page": page,
            "state": STATE_NAMES[state],
            "group": self.layout()["groups"][group],
            "owners": [{"id": f"seq-{one}", "request_id": f"req-{one}"} for one in owners],
            "ref_count": ref_count,
            "fill": fill,
            "hash": "0badcafe" if fill == 16 else "",
            "cached_seconds": 42.0 if state == CACHED else None,
        }

    def request(self, handle: int) -> dict[str, Any]:
        words = range(1, self.num_pages + 1)
        pages = [page for page in words if int.from_bytes(self.cells[8 * page - 4 : 8 * page], "little") == handle]
        return {
            "id": f"seq-{handle}",
            "request_id": f"req-{handle}",
            "tenant": "",
            "status": "running",
            "text": "It is running: 140 of 141 tokens are computed, 40 were generated.",
            "position": None,
            "wait_reason": None,
            "wanted_pages": 0,
            "available_pages": 0,
            "expected_start_seconds": None,
            "tokens": {"total": 141, "computed": 140, "generated": 40},
            "ledger": {
                "queue_seconds": 0.01,
                "prefill_seconds": 0.2,
                "decode_seconds": None,
                "peak_pages": 12,
                "page_seconds": 31.5,
                "cached_tokens": 64,
                "recomputed_tokens": 0,
                "rotations": 0,
                "draft_tokens": 0,
                "accepted_draft_tokens": 0,
                "preemptions": [],
            },
            "pages": {group: [page for page in pages if self.cells[8 * page - 7] == index]
                      for index, group in enumerate(self.layout()["groups"])},
        }  # fmt: skip

    def sequence(self, handle: int) -> dict[str, Any]:
        return {
            "handle": handle,
            "id": f"seq-{handle}",
            "request_id": f"req-{handle}",
            "tenant": "",
            "status": "running",
            "age_seconds": 10.0 + handle,
            "prompt_tokens": 100,
            "computed_tokens": 140,
            "output_tokens": 40,
            "pages": 12,
            "preemptions": 0,
            "wait_reason": None,
            "position": None,
        }

    def stats(self) -> dict[str, Any]:
        counts = self.counts()
        return {
            "time": 1000.0 + self.ticks,
            "pages": counts,
            "groups": [],
            "wasted_ratio": 0.125,
            "host": {"total": 0, "free": 0, "swapped": 0},
            "running": self.num_sequences,
            "waiting": 0,
            "waiting_by_reason": {},
            "queued_tokens": 0,
            "exhaustion_seconds": 12.0,
            "prompt_tokens": 1000 * self.ticks,
            "cached_tokens": 250 * self.ticks,
            "recomputed_tokens": 0,
            "generation_tokens": 120 * self.ticks,
            "preemptions": self.ticks // 5,
            "evicted_pages": 0,
            "steps": 10 * self.ticks,
            "step_seconds": 0.4 * self.ticks,
            "engine": "ready",
        }


class FeedServer:
    """Serves on a port of its own until the context ends. ``refuse`` may answer instead: (status, message) or None."""

    def __init__(self, pool: FakePool, *, tick_seconds: float = 0.1) -> None:
        self.pool = pool
        self.tick_seconds = tick_seconds
        self.refuse: Callable[[str | None], tuple[int, str] | None] = lambda key: None
        self.engine_state = "ready"
        self.stopping = threading.Event()
        self.cut = threading.Event()  # ends the streams that are open
        self.lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> FeedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    owner: FeedServer
    protocol_version = "HTTP/1.0"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/dashboard":
            source = PageSource.read()
            return self._answer(200, source.body, {"content-type": "text/html; charset=utf-8", **source.headers})
        authorization = self.headers.get("authorization")
        refusal = self.owner.refuse(authorization.removeprefix("Bearer ") if authorization else None)
        if refusal is not None:
            return self._json(refusal[0], {"error": {"message": refusal[1]}})
        if self.path == "/dashboard/feed":
            return self._feed()
        kind, _, name = self.path.removeprefix("/dashboard/").partition("/")
        if kind == "pages":
            return self._json(200, self.owner.pool.page(int(name)))
        if kind == "requests" and int(name.removeprefix("seq-")) <= self.owner.pool.num_sequences:
            return self._json(200, self.owner.pool.request(int(name.removeprefix("seq-"))))
        return self._json(404, {"error": {"message": "there is no such thing"}})

    def _json(self, status: int, body: object) -> None:
        self._answer(status, json.dumps(body).encode(), {"content-type": "application/json"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _feed(self) -> None:
        owner = self.owner
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        owner.cut.clear()
        try:
            told: list[bytes] = []
            while not owner.stopping.is_set() and not owner.cut.wait(owner.tick_seconds if told else 0):
                told = self._tick(told)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def _tick(self, told: list[bytes]) -> list[bytes]:
        """Tell what is new since ``told``; the chunks that are told now."""
        if self.owner.engine_state != "ready":
            self._tell("engine", {"state": self.owner.engine_state})
            return told or [b""]
        with self.owner.lock:
            pool = self.owner.pool
            if told:
                pool.tick()
            chunks = pool.chunks()
            if len(told) != len(chunks):
                self._tell("layout", pool.layout())
            for number, cells in enumerate(chunks):
                if len(told) != len(chunks) or told[number] != cells:
                    body = {"first": number * CHUNK + 1, "cells": base64.b64encode(cells).decode()}
                    self._tell("pages", body)
            sequences = [pool.sequence(handle) for handle in range(1, pool.num_sequences + 1)]
            self._tell("requests", {"total": len(sequences), "sequences": sequences})
            self._tell("stats", pool.stats())
        return chunks

    def _tell(self, name: str, data: object) -> None:
        self.wfile.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
