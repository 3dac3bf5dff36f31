"""What both processes write to stderr."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.log_format import JsonFormatter, TextFormatter, log_line, tell

ROOT = Path(__file__).parents[2]
PROGRAM = """
import logging, threading, warnings
from engine.log_format import LogFormat, log_in_background, set_up_logging, tell
set_up_logging(LogFormat("%s"))
if %s:
    log_in_background()
tell(logging.getLogger("octavo.engine"), "two\\nlines", text="  table\\n  row", fields={"pages": 20})
logging.getLogger("uvicorn.error").warning("of %%s", "others")
logging.getLogger("uvicorn.error").info("not worth a line")
warnings.warn("python's own")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise SystemError("nobody catches this")
"""


TALKATIVE_PROGRAM = """
import logging
from engine.log_format import LogFormat, log_in_background, set_up_logging
set_up_logging(LogFormat.JSON)
log_in_background()
for _ in range(2000):  # a pipe holds 64 of them
    logging.getLogger("uvicorn.error").warning("x" * 1000)
print("went on", flush=True)
"""


def run(log_format: str, *, in_background: bool = False) -> list[str]:
    program = PROGRAM % (log_format, in_background)
    finished = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.stdout == ""
    return finished.stderr.splitlines()


def emitted(logger_name: str, caplog: pytest.LogCaptureFixture, formatter: logging.Formatter, **told: Any) -> str:
    caplog.set_level(logging.INFO, logger_name)
    tell(logging.getLogger(logger_name), "the message", **told)
    return formatter.format(caplog.records[-1])


@pytest.mark.parametrize("in_background", [False, True])
def test_every_line_of_a_process_that_logs_json_is_an_object(in_background: bool) -> None:
    lines = [json.loads(line) for line in run("json", in_background=in_background)]
    shown = [(one["level"], one["logger"], one["message"].split("\n")[0]) for one in lines]
    assert shown[:2] == [("info", "octavo.engine", "two"), ("warning", "uvicorn.error", "of others")]
    assert lines[0]["pages"] == 20
    assert shown[2][:2] == ("warning", "py.warnings")
    assert "python's own" in shown[2][2]
    assert shown[3:] == [("critical", "octavo", "uncaught exception")] * 2
    assert {one["stack"].strip().splitlines()[-1] for one in lines[3:]} == {
        "ZeroDivisionError: division by zero",
        "SystemError: nobody catches this",
    }


def test_text_is_what_was_told_and_others_with_their_level() -> None:
    lines = run("text")
    assert lines[:3] == ["  table", "  row", "octavo: WARNING: of others"]
    assert lines[-1] == "SystemError: nobody catches this"


def test_a_process_whose_log_nobody_reads_goes_on_and_ends() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TALKATIVE_PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.wait(timeout=30) == 0
            assert process.stdout is not None
            assert process.stdout.read() == b"went on\n"
        finally:
            process.kill()


def test_a_time_is_utc_to_the_millisecond() -> None:
    line = json.loads(log_line(1_764_472_811.0019, "info", "octavo", "m", {}))
    assert line["time"] == "2025-11-30T03:20:11.001Z"
    assert list(line) == ["time", "level", "logger", "message"]


def test_fields_never_replace_what_every_record_has() -> None:
    line = json.loads(log_line(0.0, "info", "octavo", "m", {"level": "forged", "pages": 1}))
    assert line == {
        "time": "1970-01-01T00:00:00.000Z", "level": "info", "logger": "octavo", "message": "m", "pages": 1,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["a\nb\r\x1b[2K\x00", '"}\n{"level": "forged"}', "\u2028", "half \ud800 a pair"])
def test_no_message_breaks_its_line(text) -> None:
    line = log_line(0.0, "info", "octavo", text, {"field": [text]})
    assert len(line.splitlines()) == 1
    assert json.loads(line)["message"] == text.encode(errors="backslashreplace").decode()


def test_a_record_tells_of_what_is_under_way(caplog: pytest.LogCaptureFixture) -> None:
    formatter = JsonFormatter(lambda: {"request_id": "r-1"})
    line = json.loads(emitted("octavo.test", caplog, formatter, fields={"status": 3}))
    assert (line["request_id"], line["status"]) == ("r-1", 3)


def test_text_says_octavo_first_where_no_other_text_is_given(caplog: pytest.LogCaptureFixture) -> None:
    assert emitted("octavo.test", caplog, TextFormatter(), level=logging.ERROR) == "octavo: the message"
    assert emitted("octavo.test", caplog, TextFormatter(), text="as it is") == "as it is"


def test_an_error_brings_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        line = json.loads(emitted("octavo.test", caplog, JsonFormatter(), error=error))
        text = emitted("octavo.test", caplog, TextFormatter(), error=error)
    assert line["stack"].startswith("Traceback")
    assert line["stack"].endswith("ValueError: why\n")
    assert text.startswith("octavo: the message\nTraceback")
