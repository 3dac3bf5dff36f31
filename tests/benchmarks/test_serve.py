from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.serve import build_parser, chosen_workloads, load, main

if TYPE_CHECKING:
    from conftest import FakeServer


async def run_main(*arguments: str) -> int:
    """The command in a thread, since it runs an event loop of its own and the fake server needs this one."""
    return await asyncio.to_thread(main, list(arguments))


async def test_a_run_saves_one_result_per_repeat_with_exact_counts(
    fake_server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.jsonl"
    shape = "--requests 3 --concurrency 2 --input-tokens 10 --output-tokens 4 --shared-prefix-tokens 5 --repeats 2"

    status = await run_main("--url", fake_server.url, *shape.split(), "--save", str(file))

    results = load(file)
    assert status == 0
    assert [result["seed"] for result in results] == [0, 1]
    for result in results:
        assert (result["label"], result["model"], result["prompts"]) == ("fake-model", "fake-model", "text")
        summary = result["summary"]
        assert (summary["requests"], summary["errors"]) == (3, 0)
        # the server counts a BOS of its own; the first request showed that, so the prompts are one word shorter
        assert (summary["input_tokens"], summary["output_tokens"], summary["cached_tokens"]) == (30, 12, 6)
        assert result["conditions"]["cores"] >= 1
    lines = capsys.readouterr().out.splitlines()
    assert [cell.strip() for cell in lines[2].strip("|").split("|")][:7] == [
        "fake-model", "custom", "2", "0", "30.0", "6.0", "12.0",
    ]  # fmt: skip
    assert len(lines[0]) == len(lines[2])


async def test_saved_runs_of_two_labels_are_shown_side_by_side(
    fake_server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.jsonl"
    for label in ("ours", "peer"):
        await run_main(
            "--url", fake_server.url, "--label", label, "--save", str(file), "--workloads", "w1", "--repeats", "1"
        )
    capsys.readouterr()

    status = main(["--show", str(file)])

    lines = capsys.readouterr().out.splitlines()
    assert status == 0
    assert [[cell.strip() for cell in line.strip("|").split("|")][:2] for line in lines[2:4]] == [
        ["ours", "W1"],
        ["peer", "W1"],
    ]


async def test_failing_requests_are_counted_shown_and_make_the_command_fail(
    fake_server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_server.fail_from = 2  # the warm-up and one more succeed
    shape = "--requests 3 --concurrency 1 --input-tokens 4 --output-tokens 1 --repeats 1"

    status = await run_main("--url", fake_server.url, *shape.split())

    output = capsys.readouterr().out
    assert status == 1
    assert [cell.strip() for cell in output.splitlines()[2].strip("|").split("|")][:4] == [
        "fake-model",
        "custom",
        "1",
        "2",
    ]
    assert 'fake-model custom: 503 {"error": {"message": "no free pages"}}' in output


async def test_a_server_that_refuses_the_first_request_ends_the_command_with_its_words(
    fake_server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_server.fail_from = 0

    status = await run_main("--url", fake_server.url, "--model", "m")

    assert status == 2
    assert 'the first request failed: 503 {"error": {"message": "no free pages"}}' in capsys.readouterr().err


def test_no_server_is_one_sentence_and_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--url", "http://127.0.0.1:1"])

    assert status == 2
    assert "http://127.0.0.1:1/v1/models names no model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workloads", "W1,W9"], "no workload W9; there are W1, W2, W3, W4, W5"),
        (["--requests", "0"], "requests must be at least 1, not 0"),
        (["--repeats", "0"], "--repeats must be at least 1, not 0"),
        (["--tokenizer", "no-such-file.json"], "No such file"),
        (["--tokenizer", __file__], "test_serve.py is no tokenizer.json"),
        (["--show", "no-such-file.jsonl"], "No such file"),
    ],
)
def test_a_command_line_that_cannot_be_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--url", "http://127.0.0.1:1", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_workloads_are_found_by_name_in_the_order_given() -> None:
    arguments = build_parser().parse_args(["--workloads", "W3, w1"])

    assert [workload.name for workload in chosen_workloads(arguments)] == ["W3", "W1"]
