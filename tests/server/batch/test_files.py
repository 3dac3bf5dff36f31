"""Batch files: what a request line may be, and how the file of answers survives a kill."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from server.batch.batch_input import BatchInput
from server.batch.batch_line import BatchError, BatchLine
from server.batch.batch_output import BatchOutput


def request(name: str, **changes: object) -> bytes:
    fields = {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {"prompt": name}}
    return json.dumps(fields | changes).encode() + b"\n"


def answer(custom_id: str, status: int = 200) -> bytes:
    return BatchLine(custom_id, "/v1/completions", b"{}").answer(status, "r-1", b'{"x":1}')


def test_a_line_is_read_and_answered() -> None:
    line = BatchLine.parse(request("a"))
    assert (line.custom_id, line.url, json.loads(line.body)) == ("a", "/v1/completions", {"prompt": "a"})
    written = line.answer(404, None, b'{"error":{}}')
    fields = json.loads(written)
    assert written.endswith(b"\n")
    assert fields.pop("id").startswith("batch_req_")
    assert fields == {
        "custom_id": "a",
        "response": {"status_code": 404, "request_id": None, "body": {"error": {}}},
        "error": None,
    }


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b'{"custom_id":"a"}', "body is missing"),
        (
            b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":' + b'{"a":' * 300 + b"1" + b"}" * 301,
            "body is nested deeper than 240 levels",
        ),
        (request("a", extra=1), "unknown field 'extra'"),
        (request("a", custom_id=7), "custom_id must be a string"),
        (request("a", custom_id=""), "custom_id must be a string"),
        (request("a", method="GET"), 'method must be "POST"'),
        (request("a", url="/v1/models"), "url must be one of"),
        (request("a", body=[]), "body must be a JSON object"),
        (request("a", body={"stream": True}), "body.stream"),
    ],
)
def test_a_line_that_is_wrong_is_refused_with_its_number(line: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(request("first") + b"\n" + line)
    with pytest.raises(BatchError, match="line 3: ") as error:
        BatchInput(path)
    assert complaint in str(error.value)


def test_ids_must_differ(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(request("a") + request("a"))
    with pytest.raises(BatchError, match="line 2: custom_id 'a' is taken"):
        BatchInput(path)


@pytest.mark.parametrize("contents", [None, b"", b"\n\n"])
def test_an_input_without_requests_is_refused(contents: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    if contents is not None:
        path.write_bytes(contents)
    with pytest.raises(BatchError, match=r"in\.jsonl"):
        BatchInput(path)


def test_open_requests_come_in_order_without_those_done(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n" + b"\n".join(request(name) for name in "abcd"))
    assert [line.custom_id for line in BatchInput(path).without({"b"})] == ["a", "c", "d"]


@pytest.mark.parametrize("cut", range(1, len(answer("b", 500)) + 1, 7))
def test_a_line_cut_by_a_kill_is_as_if_never_written(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(answer("a") + answer("b", 500)[:-cut])
    with BatchOutput(path, {"a", "b"}) as output:
        assert (output.answered, output.num_failed) == ({"a"}, 0)
        output.append("b", 500, answer("b", 500))
    assert path.read_bytes() == answer("a") + answer("b", 500)
    with BatchOutput(path, {"a", "b"}) as output:
        assert (output.answered, output.num_failed) == ({"a", "b"}, 1)


@pytest.mark.parametrize(
    ("contents", "complaint"),
    [
        (b"a book\n", "line 1: is no answer"),
        (b"{}\n", "line 1: is no answer"),
        (answer("a") + answer("z"), "line 2: answers 'z'"),
        (answer("a") + answer("a"), "line 2: answers 'a' a second time"),
    ],
)
def test_a_file_that_answers_something_else_is_left_alone(contents: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(contents)
    with pytest.raises(BatchError, match=complaint):
        BatchOutput(path, {"a"})
    assert path.read_bytes() == contents


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with BatchOutput(path, {"a"}), pytest.raises(BatchError, match="another process writes"):
        BatchOutput(path, {"a"})
    with BatchOutput(path, {"a"}):
        pass


def test_a_full_disk_is_one_sentence_and_costs_the_last_line_only(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with BatchOutput(path, {"a", "b"}) as output:
        output.append("a", 200, answer("a"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(answer("a")) + 5, limits[1]))
        try:
            with pytest.raises(BatchError, match="File too large"):
                output.append("b", 200, answer("b"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.stat().st_size == len(answer("a")) + 5
    with BatchOutput(path, {"a", "b"}) as output:
        assert output.answered == {"a"}


def test_a_device_is_no_output() -> None:
    with pytest.raises(BatchError, match="/dev/null: is no file"):
        BatchOutput(Path("/dev/null"), {"a"})
