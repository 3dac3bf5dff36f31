"""The runner of CPUs, where the engine plans a step ahead: tokens that the step before draws, or fails to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.input_batch import StepTensors
from models.residual import Residual

PROMPT = [256, *range(40, 75)]


@pytest.fixture(params=["tiny_llama_dir", "tiny_gemma3_dir"])
def model(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def test_steps_planned_ahead_read_the_tokens_of_the_step_before(rig: Callable, model: Path) -> None:
    sampling = {"temperature": 3.0, "seed": 8}
    expected = rig(model).alone("a", PROMPT, 20, sampling=sampling)
    engine = rig(model, async_scheduling=True)
    engine.submit("a", PROMPT, 20, children=["b"], sampling=sampling)
    engine.run()
    assert engine.tokens("a") == expected
    assert engine.tokens("b") != expected


def test_a_failed_step_takes_nobody_along_who_joined_the_step_planned_behind_it(
    rig: Callable, tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = rig(tiny_llama_dir).alone("a", PROMPT, 8)
    engine = rig(tiny_llama_dir, async_scheduling=True)
    engine.submit("victim", PROMPT, 8)
    engine.step()
    model = engine.engine.runner._model
    drawing, failed = model.drawing, []

    def fail_once(step: StepTensors, *rest: object) -> Residual:
        if len(PROMPT) in step.positions.tolist() and not failed:
            failed.append(True)
            raise RuntimeError("the first decode")
        return drawing(step, *rest)

    monkeypatch.setattr(model, "drawing", fail_once)
    engine.step()  # submits the step that fails; the next one holds the victim and the other
    engine.submit("other", PROMPT, 8)
    engine.run()
    assert engine.last("victim").failure.code == "step_failed"
    assert engine.last("other").failure is None
    assert engine.tokens("other") == expected
    errors = [line for line in caplog.text.splitlines() if "Error: " in line]
    assert errors == ["RuntimeError: the first decode"]  # the step behind it is none


def test_the_last_layer_computes_only_the_tokens_that_draw(rig: Callable, model: Path) -> None:
    """While prompts are read: in a decode all tokens draw, and children draw from one token more than once."""
    engine = rig(model, max_num_seqs=4, max_num_batched_tokens=64)
    paged = engine.engine.runner._model
    drawing, seen = paged.drawing, []

    def tapped(step: StepTensors, *rest: object) -> Residual:
        states = drawing(step, *rest)
        torch.testing.assert_close(
            states.total(), paged.hidden(step, *rest).rows(step.logits_rows).total(), rtol=1e-4, atol=1e-5
        )
        seen.append((len(step.token_ids), None if step.last is None else step.last.rows.tolist()))
        return states

    paged.drawing = tapped
    engine.submit("a", list(range(100)), 3)
    engine.submit("b", list(range(50, 70)), 3)
    engine.run()
    assert seen == [(64, [63]), (33, [32]), (25, [23, 24]), (1, None), (1, None)]  # "b" draws from the first on

    seen.clear()
    engine.submit("c", list(range(120, 180)), 2, children=["d"])
    engine.run()
    assert seen == [(60, None), (2, None)]


def test_all_tokens_are_computed_where_a_step_tells_of_its_prompts(rig: Callable, model: Path) -> None:
    prompt = list(range(60))
    engine = rig(model)
    expected = engine.alone("plain", prompt, 4)
    assert engine.alone("telling", prompt, 4, prompt_logprobs=2) == expected
