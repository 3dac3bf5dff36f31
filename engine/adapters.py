"""Adapters: which adapters requests can choose, by name, and which requests use them.

    load -> read in a thread -> installed -> named -> (replaced or unloaded) -> used -> removed
                                             requests can choose it            until the last one that did has ended

Knows names, numbers and requests; what an adapter is made of is the store's. Each load has a number of its own, by
which steps name it. Invariants: a name stands for one number at most; what a request has taken stays installed until
that request has ended; prompts that were read by two adapters share cached pages only where both have the same digest.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.adapter_messages import AdapterAnswer, AdapterReport, AdapterRequests, LoadAdapter, UnloadAdapter
from engine.log_format import tell
from scheduler.batch import NO_ADAPTER

logger = logging.getLogger("octavo.engine")


class AdapterError(Exception):
    """An adapter that cannot be loaded, or is not there. ``code`` as in `AdapterAnswer`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class StoredAdapter(Protocol):
    """What was read of an adapter."""

    @property
    def rank(self) -> int:
        """The largest of its parts."""

    @property
    def num_bytes(self) -> int:
        """Memory it takes."""

    @property
    def digest(self) -> str:
        """Equal where two adapters change the model alike."""


class AdapterStore(Protocol):
    """Reads adapters and puts them into the model."""

    def read(self, path: str) -> StoredAdapter:
        """Read and check the adapter in a directory, in any thread. Raises AdapterError with a sentence."""

    def install(self, number: int, adapter: Any) -> None:
        """Let steps from now on use what was read, under ``number``. Raises AdapterError where there is no room."""

    def remove(self, number: int) -> None:
        """No step from now on uses it."""


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """What a request needs to know of its adapter: the number for its steps, the digest for its pages."""

    number: int = NO_ADAPTER
    digest: str = ""


@dataclass(slots=True)
class _Installed:
    use: AdapterUse
    report: AdapterReport
    is_named: bool = True
    users: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Load:
    message: LoadAdapter
    read: Future[StoredAdapter]


class Adapters:
    """The adapters of one engine; ``store`` None: it has none and loads none."""

    def __init__(self, store: AdapterStore | None = None) -> None:
        self._store = store
        self._numbers = itertools.count(NO_ADAPTER + 1)
        self._named: dict[str, _Installed] = {}
        self._used: dict[str, _Installed] = {}  # by request
        self._loads: list[_Load] = []
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="adapter")

    # ---- adapters come and go

    @property
    def is_loading(self) -> bool:
        """Whether `take_loaded` will have answers."""
        return bool(self._loads)

    def reports(self) -> list[AdapterReport]:
        """Those that requests can choose, in the order they came."""
        return [one.report for one in self._named.values()]

    def requests(self, running: Collection[str]) -> list[AdapterRequests]:
        """How many use each of them, of whom those in ``running`` run, and the others wait."""
        found = []
        for name, installed in self._named.items():
            num_running = sum(user in running for user in installed.users)
            found.append(AdapterRequests(name=name, running=num_running, waiting=len(installed.users) - num_running))
        return found

    def load_now(self, name: str, path: str) -> None:
        """Read and install one; raises AdapterError."""
        self._install(LoadAdapter(0, name, path), self._read(path))

    def begin_load(self, message: LoadAdapter) -> None:
        """Begin to read one, while steps go on; see `take_loaded`."""
        read: Future[StoredAdapter] = Future()
        try:
            self._check_name(message)
            self._require_store()
            read = self._readers.submit(self._read, message.path)
        except AdapterError as error:
            read.set_exception(error)
        self._loads.append(_Load(message, read))

    def take_loaded(self) -> list[AdapterAnswer]:
        """Install what has been read; the answers to those who asked for it."""
        answers = []
        while self._loads and self._loads[0].read.done():
            load = self._loads.pop(0)
            try:
                self._install(load.message, load.read.result())
            except AdapterError as error:
                answers.append(self._answer(load.message.query_id, error))
            else:
                answers.append(self._answer(load.message.query_id))
        return answers

    def unload(self, message: UnloadAdapter) -> AdapterAnswer:
        """No request can choose it any more; it is removed with the last one that has."""
        installed = self._named.pop(message.name, None)
        if installed is None:
            return self._answer(message.query_id, self._unknown(message.name))
        tell(logger, f"adapter {message.name!r} unloaded", fields={"adapter": message.name})
        self._retire(installed)
        return self._answer(message.query_id)

    # ---- requests come and go

    def take(self, name: str, request_ids: tuple[str, ...]) -> AdapterUse:
        """The adapter ``name`` for these requests, until each is let go of; "" is none. Raises AdapterError."""
        if not name:
            return AdapterUse()
        installed = self._named.get(name)
        if installed is None:
            raise self._unknown(name)
        installed.users.update(request_ids)
        self._used.update(dict.fromkeys(request_ids, installed))
        return installed.use

    def use_of(self, request_id: str) -> AdapterUse:
        """What the request has taken."""
        installed = self._used.get(request_id)
        return AdapterUse() if installed is None else installed.use

    def release(self, request_id: str) -> None:
        """The request has ended, if it has not been let go of before."""
        installed = self._used.pop(request_id, None)
        if installed is not None:
            installed.users.discard(request_id)
            self._remove_unused(installed)

    def _read(self, path: str) -> StoredAdapter:
        try:
            return self._require_store().read(path)
        except AdapterError:
            raise
        except Exception as error:  # no file may end an engine that has requests, or keep it from coming back
            logger.exception("the adapter in %s failed to load", path)
            reason = f"{type(error).__name__}: {error}"
            raise AdapterError("invalid_adapter", f"{path} cannot be loaded: {reason}") from error

    def _install(self, message: LoadAdapter, adapter: StoredAdapter) -> None:
        self._check_name(message)
        number = next(self._numbers)
        self._require_store().install(number, adapter)
        report = AdapterReport(name=message.name, path=message.path, rank=adapter.rank, num_bytes=adapter.num_bytes)
        size = f"rank {report.rank}, {report.num_bytes / 1e6:.1f} MB"
        tell(logger, f"adapter {message.name!r} loaded from {message.path}: {size}", fields={"adapter": message.name})
        replaced = self._named.pop(message.name, None)
        self._named[message.name] = _Installed(AdapterUse(number, adapter.digest), report)
        if replaced is not None:
            self._retire(replaced)

    def _check_name(self, message: LoadAdapter) -> None:
        if message.name in self._named and not message.replaces:
            raise AdapterError("adapter_exists", f"an adapter {message.name!r} is loaded already")

    def _retire(self, installed: _Installed) -> None:
        installed.is_named = False
        self._remove_unused(installed)

    def _remove_unused(self, installed: _Installed) -> None:
        if not installed.is_named and not installed.users:
            self._require_store().remove(installed.use.number)

    def _unknown(self, name: str) -> AdapterError:
        return AdapterError("unknown_adapter", f"no adapter {name!r} is loaded")

    def _require_store(self) -> AdapterStore:
        if self._store is None:
            raise AdapterError("invalid_adapter", "this engine loads no adapters")
        return self._store

    def _answer(self, query_id: int, error: AdapterError | None = None) -> AdapterAnswer:
        if error is None:
            return AdapterAnswer(query_id=query_id, adapters=self.reports())
        return AdapterAnswer(query_id=query_id, adapters=self.reports(), code=error.code, problem=str(error))
