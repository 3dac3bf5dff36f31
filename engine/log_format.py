"""How both processes write what happens to stderr: text for people, or one JSON object a line for machines.

    {"time": "2026-11-30T03:20:11.123Z", "level": "warning", "logger": "octavo.engine", "message": ..., ...}

Knows the standard library's logging, and nothing of what is said. Invariants: in JSON every record is one line,
whatever is in it; fields of a record never replace those that every record has; once `log_in_background` was called,
nobody who logs waits for whoever reads stderr; imports nothing heavy.
"""

from __future__ import annotations

import enum
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import msgspec

from engine.line_writer import LineWriter

ROOT_LOGGER = "octavo"  # of all loggers of ours

Fields = Mapping[str, Any]


class LogFormat(enum.StrEnum):
    TEXT = "text"
    JSON = "json"


def tell(
    logger: logging.Logger,
    message: str,
    *,
    level: int = logging.INFO,
    text: str | None = None,
    fields: Fields | None = None,
    error: BaseException | None = None,
) -> None:
    """Log something for the user: as ``text`` where that is the format, else as ``message`` with ``fields``.

    ``text`` is "octavo: " and the message, unless given. A traceback of ``error`` follows.
    """
    shown = f"octavo: {message}" if text is None else text
    logger.log(level, "%s", message, exc_info=error, extra={"octavo_text": shown, "octavo_fields": fields or {}})


def set_up_logging(log_format: LogFormat, context: Callable[[], Fields] | None = None) -> None:
    """Send all records of this process to stderr: ours from INFO on, others' from WARNING on.

    ``context`` gives fields of whatever is under way when something is logged. As JSON, warnings of Python and
    exceptions that nobody catches are records too.
    """
    handler = _StderrHandler()
    handler.setFormatter(JsonFormatter(context) if log_format is LogFormat.JSON else TextFormatter())
    root = logging.getLogger()
    for earlier in [one for one in root.handlers if isinstance(one, _StderrHandler)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    logging.getLogger(ROOT_LOGGER).setLevel(logging.INFO)
    if log_format is LogFormat.JSON:
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_in_thread


def log_in_background() -> None:
    """Write on a thread from now on: for a process that serves, which must not stop when nobody reads its stderr.

    What is left is written as the interpreter exits, or by ``logging.shutdown``.
    """
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _StderrHandler):
            handler.write_in_background()


class TextFormatter(logging.Formatter):
    """What was told, word by word; other records with their level."""

    def __init__(self) -> None:
        super().__init__("octavo: %(levelname)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        text: str | None = getattr(record, "octavo_text", None)
        return super().formatMessage(record) if text is None else text


class JsonFormatter(logging.Formatter):
    """One line for a record: time (RFC 3339, UTC, milliseconds), level, logger, message, its fields, and a stack."""

    def __init__(self, context: Callable[[], Fields] | None = None) -> None:
        super().__init__()
        self._context = context or dict

    def format(self, record: logging.LogRecord) -> str:
        line = log_line(
            record.created, record.levelname.lower(), record.name, record.getMessage(), self._fields(record)
        )
        return line.decode()

    def _fields(self, record: logging.LogRecord) -> Fields:
        fields = {**self._context(), **getattr(record, "octavo_fields", {})}
        if record.exc_info and record.exc_info[1] is not None:
            fields["stack"] = "".join(traceback.format_exception(record.exc_info[1]))
        elif record.stack_info:
            fields["stack"] = record.stack_info
        return fields


def log_line(created: float, level: str, logger: str, message: str, fields: Fields) -> bytes:
    """A JSON line without its end; ``created`` is in seconds since 1970."""
    milliseconds = int(created * 1000)
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
    first = {"time": f"{moment}.{milliseconds % 1000:03d}Z", "level": level, "logger": logger, "message": message}
    return _encode({**fields, **first} if fields.keys() & first.keys() else {**first, **fields})


def _encode(record: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(record, enc_hook=repr)
    except UnicodeEncodeError:  # half of a surrogate pair is no text
        return msgspec.json.encode(_clean(record), enc_hook=repr)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_clean(name): _clean(one) for name, one in value.items()}
    return [_clean(one) for one in value] if isinstance(value, list | tuple) else value


class _StderrHandler(logging.Handler):
    """Writes to what stderr is at that moment, a record in one piece; in the background, to what it was then."""

    def __init__(self) -> None:
        super().__init__()
        self._writer: LineWriter | None = None

    def write_in_background(self) -> None:
        if self._writer is None:
            self._writer = LineWriter(sys.stderr.fileno(), self._lost_line)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
            if self._writer is not None:
                self._writer.write(line.encode(errors="backslashreplace"))
            else:
                sys.stderr.write(line)
                sys.stderr.flush()
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            if self._writer.is_over:
                self._writer = None
        super().close()

    def _lost_line(self, count: int) -> bytes:
        message = f"{count} lines of this log were lost: whoever reads it is too slow"
        record = logging.LogRecord(ROOT_LOGGER, logging.WARNING, __file__, 0, message, None, None)
        return (self.format(record) + "\n").encode()


def _log_uncaught(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    logging.getLogger(ROOT_LOGGER).critical("uncaught exception", exc_info=(kind, error, where))


def _log_uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None and arguments.exc_type is not SystemExit:
        _log_uncaught(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
