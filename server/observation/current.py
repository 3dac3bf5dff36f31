"""Which API request the running task serves, so that whoever learns something of it knows where to note that.

A context variable: tasks that a request starts are its own too. It is not taken back when a request is over, since its
task ends then, and what goes wrong until then is still its own.
"""

from __future__ import annotations

from contextvars import ContextVar

from server.observation.request_record import RequestRecord

_CURRENT: ContextVar[RequestRecord | None] = ContextVar("octavo_request", default=None)


def begin(record: RequestRecord) -> None:
    """The running task serves this from now on."""
    _CURRENT.set(record)


def current_record() -> RequestRecord | None:
    return _CURRENT.get()


def note_error(code: str) -> None:
    """The client is told of an error, instead of an answer or at the end of a part of one."""
    if (record := _CURRENT.get()) is not None:
        record.error_code = code


def log_context() -> dict[str, str]:
    """The ids of the request, for whatever is logged: the one its client knows, and ours where that is another."""
    record = _CURRENT.get()
    if record is None or record.shown_id is None or record.own_id is None:
        return {}
    own, shown = record.own_id, record.shown_id
    return {"request_id": shown} if own == shown else {"request_id": shown, "id": own}
