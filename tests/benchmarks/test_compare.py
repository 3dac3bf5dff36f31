"""Servers side by side: rounds are interleaved, medians and ratios are those of the rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare
from benchmarks.compare import cell, main, ratio, table
from benchmarks.peers import Server
from benchmarks.started_server import ServerStartError


def result(label: str, speed: float, *, ttft: float | None = 10.0, errors: int = 0) -> dict[str, Any]:
    return {
        "label": label,
        "workload": {"name": "W1"},
        "summary": {
            "output_tokens_per_second": speed,
            "ttft_ms": {"p50": ttft},
            "itl_ms": None,
            "errors": errors,
            "first_error": "no luck" if errors else None,
        },
        "server_ready_seconds": 2.0,
        "server_memory_mib": None,
    }


def test_a_cell_has_the_median_and_the_range() -> None:
    assert cell([]) == "-"
    assert cell([56.94]) == "56.9"
    assert cell([3.0, 1.0, 2.0]) == "2.0 (1.0 to 3.0)"
    assert cell([1500.0, 700.0]) == "1,100 (700 to 1,500)"


def test_a_ratio_is_of_medians() -> None:
    assert ratio([1.0, 2.0, 30.0], [4.0, 1.0, 8.0]) == "0.50"
    assert ratio([], [1.0]) == ratio([1.0], []) == ratio([1.0], [0.0]) == "-"


def test_the_table_holds_every_server_against_the_first() -> None:
    results = [result("ours", 60.0), result("theirs", 20.0, ttft=40.0), result("ours", 62.0), result("theirs", 22.0)]
    *_, ours, theirs = table(results, ["ours", "theirs"]).splitlines()
    assert (
        ours == "| W1 | ours | 61.0 (60.0 to 62.0) | 10.0 (10.0 to 10.0) | - | 2.0 (2.0 to 2.0) | - | 1.00 | 1.00 | - |"
    )
    assert theirs.startswith("| W1 | theirs | 21.0 (20.0 to 22.0) | 25.0 (10.0 to 40.0) | - |")
    assert theirs.endswith("| 2.90 | 0.40 | - |")


def test_rounds_are_interleaved_and_have_prompts_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[tuple[str, int]] = []

    def measured(server: Server, workloads: str, seed: int, ready_timeout: float) -> list[dict[str, Any]]:
        assert (workloads, ready_timeout) == ("W1", 600)
        order.append((server.label, seed))
        return [result(server.label, 10.0)]

    monkeypatch.setattr(compare, "measure", measured)
    servers = ["--server", "a", "http://x", "run a", "--server", "b", "http://y", "run b"]
    assert main([*servers, "--workloads", "W1", "--rounds", "2"]) == 0
    assert order == [("a", 0), ("b", 0), ("a", 1000), ("b", 1000)]
    assert "| W1 | b | 10.0 (10.0 to 10.0) |" in capsys.readouterr().out


def test_failures_are_the_exit_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    one = ["--server", "a", "http://x", "run a", "--rounds", "1"]
    monkeypatch.setattr(compare, "measure", lambda *_: [result("a", 1.0, errors=2)])
    assert main(one) == 1
    assert "a W1: no luck" in capsys.readouterr().err

    def broken(*_: object) -> list[dict[str, Any]]:
        raise ServerStartError("it did not start")

    monkeypatch.setattr(compare, "measure", broken)
    assert main(one) == 2
    assert "a: it did not start" in capsys.readouterr().err
    for wrong in ([*one, "--server", "a", "http://y", "run b"], [], [*one, "--octavo", "int3"]):
        with pytest.raises(SystemExit):
            main(wrong)


def test_a_server_that_breaks_is_left_out_and_the_others_are_written_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []

    def measured(server: Server, *_: object) -> list[dict[str, Any]]:
        order.append(server.label)
        if server.label == "b":
            raise ServerStartError("it ended with status 1:\nits log")
        return [result(server.label, 10.0)]

    monkeypatch.setattr(compare, "measure", measured)
    page = tmp_path / "page.md"
    page.write_text("<!-- peers: begin -->\n<!-- peers: end -->\n")
    servers = [word for label in "abc" for word in ("--server", label, "http://x", "run")]
    assert main([*servers, "--rounds", "2", "--write", str(page), "--section", "peers"]) == 2
    assert order == ["a", "b", "c", "a", "c"]
    written = page.read_text()
    assert written.count("| W1 | ") == 2
    assert "| W1 | c | 10.0 (10.0 to 10.0) |" in written
    assert "Not measured to the end: b: it ended with status 1:\n" in written
    assert "its log" in capsys.readouterr().err


def test_an_interrupt_leaves_the_rounds_that_were_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = [result("a", 10.0), result("a", 12.0)]

    def measured(*_: object) -> list[dict[str, Any]]:
        if not left:
            raise KeyboardInterrupt
        return [left.pop()]

    monkeypatch.setattr(compare, "measure", measured)
    assert main(["--server", "a", "http://x", "run", "--rounds", "9"]) == 2
    text = capsys.readouterr().out
    assert "| W1 | a | 11.0 (10.0 to 12.0) |" in text
    assert "Not measured to the end: a: interrupted in round 3" in text
