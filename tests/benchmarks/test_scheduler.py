"""The scheduler's benchmark runs the load it describes, and its table compares what was measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import scheduler
from benchmarks.scheduler import StepCost, decoding_scheduler, main, measure, row


def test_every_request_decodes_at_the_context_that_is_promised() -> None:
    made = decoding_scheduler(5, 20)
    assert len(made.running) == 5
    assert len(made.waiting) == 0
    assert all(request.num_prompt_tokens == 1024 for request in made.running)
    batch = made.schedule()
    assert [share.num_tokens for share in batch.requests] == [1] * 5
    assert made.blocks.audit() == []


def test_each_step_is_measured_in_both_halves() -> None:
    cost = measure(3, 7)
    assert len(cost.schedule) == len(cost.update) == 7
    assert min(cost.schedule + cost.update) > 0
    assert len((cost + cost).schedule) == 14


def test_a_row_gives_medians_and_the_ratio_of_whole_steps() -> None:
    cost = StepCost((1000.0, 3000.0, 2000.0), (500.0, 100.0, 400.0))
    assert cost.step == 2400.0  # the median of 1500, 3100 and 2400, not 2000 + 400 by chance
    peer = StepCost((9000.0,), (600.0,))
    assert row("Octavo", 256, cost, peer) == "| 256 | Octavo | 2.00 | 0.40 | 2.40 | 9.4 | 0.25 |"
    assert row("vLLM 1", 256, peer) == "| 256 | vLLM 1 | 9.00 | 0.60 | 9.60 | 37.5 |  |"


@pytest.mark.parametrize(("peer_microseconds", "status"), [(1e6, 0), (1.0, 1)])
def test_a_missed_target_is_the_exit_status(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    peer_microseconds: float,
    status: int,
) -> None:
    peer = tmp_path / "peer.py"
    peer.write_text(
        "import json, sys\n"
        "assert sys.argv[1:] == ['2', '4', '1024', '16']\n"
        f"print(json.dumps({{'version': '1.2', 'schedule': [{peer_microseconds}], 'update': [0.0]}}))\n"
    )
    monkeypatch.setattr(scheduler, "PEER_SCRIPT", peer)
    arguments = ["--running", "2", "--steps", "4", "--rounds", "1", "--vllm-python", sys.executable]
    assert main(arguments) == status
    assert "vLLM 1.2" in capsys.readouterr().out


def test_a_peer_that_does_not_run_is_an_error_and_not_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = tmp_path / "peer.py"
    peer.write_text("raise SystemExit('no vLLM here')\n")
    monkeypatch.setattr(scheduler, "PEER_SCRIPT", peer)
    with pytest.raises(RuntimeError, match="no vLLM here"):
        main(["--running", "2", "--steps", "1", "--rounds", "1", "--vllm-python", sys.executable])
