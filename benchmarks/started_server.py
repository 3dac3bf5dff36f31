"""Starts a server from a command line, waits until it serves, and stops it with all its children.

Does not know which server it is. Invariants: nothing of the server is left when the context ends, however it ends; a
server that dies early is reported with the end of its own output.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from http import HTTPStatus
from types import TracebackType
from typing import IO, Self

from benchmarks.machine import is_running, process_tree

POLL_SECONDS = 0.05
STOP_SECONDS = 15.0
LOG_LINES = 15


class ServerStartError(Exception):
    """The server could not be started or did not become ready."""


class StartedServer:
    """A server process, from its command until the context ends.

    ``url`` is where it will serve, without a path; ``ready_seconds`` is the time from the start of the command to then.
    """

    def __init__(self, command: str, url: str, timeout: float) -> None:
        self._command = command
        self._url = url
        self._timeout = timeout
        self.ready_seconds = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        if _status(self._url) is not None:
            raise ServerStartError(f"something answers at {self._url} already; stop it, or leave --start out")
        self._log: IO[bytes] = tempfile.TemporaryFile()
        start = time.perf_counter()
        try:
            # A session of its own, so that its children can be stopped with it and Ctrl-C reaches only us.
            self._process = subprocess.Popen(
                shlex.split(self._command),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise ServerStartError(f"cannot start {self._command!r}: {error}") from error
        try:
            self._wait_until_ready(start)
        except BaseException:
            self._stop()
            raise
        self.ready_seconds = time.perf_counter() - start
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def _wait_until_ready(self, start: float) -> None:
        while not is_ready(self._url):
            if (status := self._process.poll()) is not None:
                raise ServerStartError(f"{self._command!r} ended with status {status}:\n{self._end_of_log()}")
            if time.perf_counter() - start > self._timeout:
                waited = f"is not ready at {self._url} after {self._timeout:g} s"
                raise ServerStartError(f"{self._command!r} {waited}:\n{self._end_of_log()}")
            time.sleep(POLL_SECONDS)

    def _end_of_log(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])

    def _stop(self) -> None:
        members = process_tree(self._process.pid)
        self._signal(signal.SIGTERM)
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        finally:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._log.close()
            # those that were killed with it take their time to give memory back, which the next one may need
            deadline = time.perf_counter() + STOP_SECONDS
            while any(map(is_running, members)) and time.perf_counter() < deadline:
                time.sleep(POLL_SECONDS)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def is_ready(url: str) -> bool:
    """Whether the server at ``url`` takes requests: by its /ready, or where it has none, by its list of models."""
    status = _status(f"{url}/ready")
    if status == HTTPStatus.NOT_FOUND:
        status = _status(f"{url}/v1/models")
    return status == HTTPStatus.OK


def _status(url: str) -> int | None:
    """The status of a GET, None without an answer."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return None
