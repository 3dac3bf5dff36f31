"""ChatSource: where the answers of a terminal chat come from.

Both kinds speak the HTTP API: one to a server by its address, one to an app in this process. They block their caller,
who is a terminal with nothing else to do. Invariant: an iterator of chunks that is closed early aborts the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import orjson

from server.http.local_app import LocalApp
from server.model_start import FoundModel, ModelStart, find_model
from server.options import ModelOptions
from server.serving import loop_factory

T = TypeVar("T")
CHAT_PATH = "/v1/chat/completions"
CONNECT_SECONDS = 10.0


class ChatSourceError(Exception):
    """No answer; the message is one sentence for the user."""


class ChatSource(Protocol):
    """``model`` is the name that requests must bear."""

    model: str

    def stream(self, body: dict[str, Any]) -> Iterator[bytes]:
        """The bytes of a streamed chat answer. Raises ChatSourceError."""

    def close(self) -> None: ...


class RemoteSource:
    """A server at ``url``, such as http://127.0.0.1:8000."""

    def __init__(self, url: str, *, api_key: str | None = None, model: str | None = None) -> None:
        """Without ``model`` the first that the server lists. Raises ChatSourceError."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ChatSourceError(f"--url {url}: must be like http://127.0.0.1:8000")
        self._url = url
        self._host, self._is_secure = parts.netloc.rpartition("@")[2], parts.scheme == "https"
        self._root = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self.model = model or self._first_model()

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        return kind(self._host, timeout=CONNECT_SECONDS)

    def _first_model(self) -> str:
        with contextlib.closing(self._connect()) as connection:
            reply = self._request(connection, "GET", "/v1/models", None)
            models = orjson.loads(reply.read())["data"]
        return str(models[0]["id"])

    def _request(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None
    ) -> http.client.HTTPResponse:
        try:
            connection.request(method, self._root + path, body, self._headers)
            if connection.sock is not None:
                connection.sock.settimeout(None)  # a prompt may take its time
            reply = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise ChatSourceError(f"{self._url}: {str(error) or type(error).__name__}") from None
        if reply.status != 200:
            raise ChatSourceError(_message(reply.status, reply.read()))
        return reply

    def stream(self, body: dict[str, Any]) -> Iterator[bytes]:
        with contextlib.closing(self._connect()) as connection:
            reply = self._request(connection, "POST", CHAT_PATH, orjson.dumps(body))
            try:
                while chunk := reply.read1(65536):
                    yield chunk
            except (OSError, http.client.HTTPException) as error:
                raise ChatSourceError(f"{self._url}: {str(error) or type(error).__name__}") from None

    def close(self) -> None:
        """Nothing is held between two answers."""


class LocalSource:
    """A model of its own, in an engine process that ends with it; its event loop runs in a thread."""

    def __init__(self, options: ModelOptions) -> None:
        """Raises CheckpointError, TextError or EngineStartError."""
        model = find_model(options)
        self._loop = (loop_factory() or asyncio.new_event_loop)()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chat", daemon=True)
        self._thread.start()
        self._start = self._wait(_start(options, model))
        self.model = self._start.name
        try:
            self._app = self._wait(_load(self._start))
        except BaseException:
            self.close()
            raise

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stream(self, body: dict[str, Any]) -> Iterator[bytes]:
        reply = self._app.post(CHAT_PATH, orjson.dumps(body))
        answer = self._wait(reply.__aenter__())
        try:
            if answer.status != 200:
                raise ChatSourceError(_message(answer.status, self._wait(answer.body())))
            chunks = aiter(answer.chunks)
            while (chunk := self._wait(_next(chunks))) is not None:
                yield chunk
        finally:
            self._wait(reply.__aexit__(None, None, None))

    def close(self) -> None:
        self._wait(self._start.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _start(options: ModelOptions, model: FoundModel) -> ModelStart:
    return ModelStart(options, model)


async def _load(start: ModelStart) -> LocalApp:
    from server.app import create_app

    state = start.state()
    app = LocalApp(create_app(state))
    await start.finish(state)
    return app


async def _next(chunks: Any) -> bytes | None:
    return await anext(chunks, None)


def _message(status: int, body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"the server answered with status {status}"
