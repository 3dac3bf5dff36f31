"""RequestLog: the observer that logs one line for each API request that is over."""

from __future__ import annotations

import time

from engine.line_writer import LineWriter
from engine.log_format import LogFormat, log_line
from server.logs.request_line import LOGGER, json_line, text_line
from server.observation.request_record import RequestRecord


class RequestLog:
    """Lines in the format of all logs, to ``descriptor``, usually that of stderr."""

    def __init__(self, log_format: LogFormat, descriptor: int) -> None:
        self._make_line = json_line if log_format is LogFormat.JSON else text_line
        self._writer = LineWriter(descriptor, _lost_json if log_format is LogFormat.JSON else _lost_text)

    def finished(self, record: RequestRecord) -> None:
        self._writer.write(self._make_line(record))

    def close(self) -> None:
        self._writer.close()


def _lost_json(count: int) -> bytes:
    return log_line(time.time(), "warning", LOGGER, _lost(count), {"lost_lines": count}) + b"\n"


def _lost_text(count: int) -> bytes:
    return f"octavo: WARNING: {_lost(count)}\n".encode()


def _lost(count: int) -> str:
    return f"{count} lines of finished requests were lost: whoever reads this log is too slow"
