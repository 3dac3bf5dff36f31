"""Engines whose requests have penalties, biases, forbidden tokens and constraints: each draws by the documented rule,
whoever is beside it, whatever is preempted, planned ahead or guessed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.logit_edits import LogitEditor
from engine.logprobs import token_logprobs
from engine.messages import EngineRequest
from engine.sampling_params import Grammar, GrammarKind, SamplingParams
from scheduler.request import FinishReason
from scheduler.speculation import Speculation
from tests.engine.fake_device import FakeDevice
from tests.engine.test_logit_edits import Allowing, dense

PROMPT = [256, *range(40, 75)]
PARIS = [256, 80, 97, 114, 105, 115, 32, 80, 97, 114, 105, 115, 32, 80, 97, 114, 105, 115]
GRAMMAR = Grammar(kind=GrammarKind.REGEX, text="made up")
MANY = {
    "penalised": {"repetition_penalty": 1.8, "frequency_penalty": 0.4, "presence_penalty": -0.3},
    "drawn": {"repetition_penalty": 0.8, "temperature": 2.0, "seed": 5, "top_k": 30},
    "biased": {"logit_bias": {7: 2.5, 90: -100.0, 200: 1.5}},
    "late": {"min_tokens": 6, "stop_token_ids": list(range(0, 250, 2)), "temperature": 3.0, "seed": 1},
    "plain": {},
    "plainly drawn": {"temperature": 1.0, "seed": 9, "top_p": 0.9},
    "ranked": {"frequency_penalty": 1.1, "rank": True, "temperature": 2.0, "seed": 3},
    "choosy": {"grammar": GRAMMAR, "temperature": 5.0, "seed": 4, "presence_penalty": 0.5},
}


@pytest.fixture(params=["tiny_llama_dir", "tiny_gemma3_dir"])
def model(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


class Walk:
    """Allows what is at most 40 ids above the token before, for ever."""

    is_over = False

    def may_end(self) -> bool:
        return False

    def __init__(self) -> None:
        self.newest = 0

    def allowed(self) -> np.ndarray:
        near = {(self.newest + step) % 250 for step in range(1, 41)}
        return Allowing(258, [near]).allowed()

    def accept(self, token_id: int) -> None:
        assert (token_id - self.newest) % 250 in range(1, 41)
        self.newest = token_id


def submit(engine: object, name: str, prompt: list[int], max_tokens: int, **fields: object) -> None:
    """As the rig does, with a `Walk` for each sequence where there is a grammar."""
    children = fields.pop("children", [])
    sampling = SamplingParams(max_tokens=max_tokens, **{"temperature": 0.0, "ignore_eos": True, **fields})
    engine.engine.submit(
        EngineRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling, children=children),
        None if sampling.grammar is None else Walk,
    )


def answers(engine: object, names: list[str], max_tokens: int = 24) -> dict[str, tuple]:
    """Tokens, log probabilities and endings of `MANY`, one of them with samples, arriving over time."""
    for number, name in enumerate(names):
        rng = random.Random(name)
        prompt = [256, *(rng.randrange(250) for _ in range(rng.choice([3, 20, 36])))]
        children = [f"{name}/{child}" for child in (1, 2)] if name in ("drawn", "choosy") else []
        submit(engine, name, prompt, max_tokens, children=children, **MANY[name])
        if number % 3 == 2:
            engine.step()
    engine.run()
    assert all(deltas[-1].failure is None for deltas in engine.deltas.values())
    return {
        name: (engine.tokens(name), [round(one.logprob, 3) for one in deltas], deltas[-1].finish_reason)
        for name, deltas in engine.deltas.items()
    }


def recorded_logits(engine: object, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The first row of each step from now on, as the model has it."""
    logits_of, rows = engine.engine.runner._model.logits, []

    def record(step: object) -> torch.Tensor:
        logits = logits_of(step)
        rows.append(logits[0].clone())
        return logits

    monkeypatch.setattr(engine.engine.runner._model, "logits", record)
    return rows


# ---- by the rule


@pytest.mark.parametrize(
    "sampling",
    [
        {"repetition_penalty": 2.0},
        {"repetition_penalty": 0.6, "frequency_penalty": 0.5},
        {"presence_penalty": 1.5, "logit_bias": {3: 4.0, 120: -7.5}},
        {"min_tokens": 5, "stop_token_ids": list(range(200))},
    ],
    ids=lambda sampling: "+".join(sampling),
)
def test_c04_every_draw_is_of_the_models_logits_edited_by_prompt_and_output_so_far(
    rig: Callable, model: Path, monkeypatch: pytest.MonkeyPatch, sampling: dict[str, object]
) -> None:
    """The repetition penalty counts the prompt from the first draw on; the others count the output only."""
    engine = rig(model)
    rows = recorded_logits(engine, monkeypatch)
    submit(engine, "a", PARIS, 16, **sampling)
    engine.run()
    tokens = engine.tokens("a")
    params = SamplingParams(max_tokens=16, **sampling)
    ending = {*engine.ready.eos_token_ids, *params.stop_token_ids}
    expected = [int(dense(row, params, PARIS, tokens[:index], ending, None).argmax()) for index, row in enumerate(rows)]
    assert tokens[: len(expected)] == expected
    assert len(rows) == (params.min_tokens if params.min_tokens else 16), (
        "who is edited no more is drawn without logits"
    )


def test_min_tokens_keeps_eos_and_stop_tokens_away_and_then_lets_them_end_the_request(
    rig: Callable, model: Path
) -> None:
    engine = rig(model)
    eos = engine.ready.eos_token_ids
    bias = {eos[0]: 100.0, 5: 50.0}
    submit(engine, "eos", PROMPT, 20, ignore_eos=False, min_tokens=4, logit_bias=bias)
    submit(engine, "ignored", PROMPT, 6, min_tokens=4, logit_bias=bias)
    submit(engine, "stop", PROMPT, 20, min_tokens=2, logit_bias={5: 100.0}, stop_token_ids=[5])
    engine.run()
    assert engine.tokens("eos") == [5, 5, 5, 5, eos[0]]
    assert engine.last("eos").finish_reason is FinishReason.STOP
    assert engine.tokens("ignored") == [5, 5, 5, 5, eos[0], eos[0]]
    assert 5 not in engine.tokens("stop")[:2]
    assert (engine.tokens("stop")[2:], engine.last("stop").stop_token_id) == ([5], 5)


@pytest.mark.parametrize("on_device", [False, True])
def test_log_probabilities_are_of_the_model_itself(
    rig: Callable, model: Path, on_device: bool, request: pytest.FixtureRequest
) -> None:
    if on_device:
        request.getfixturevalue("device")
    engine = rig(model, max_num_seqs=2, max_model_len=128)
    with pytest.MonkeyPatch.context() as patch:
        rows = recorded_logits(engine, patch)
        submit(engine, "a", PROMPT, 3, rank=True, logit_bias={90: 100.0})
        engine.run()
    assert engine.tokens("a") == [90, 90, 90]
    assert [delta.logprob for delta in engine.deltas["a"]] == [
        token_logprobs(row[None], [0], [90], [0])[0].logprob for row in rows
    ]
    assert engine.deltas["a"][0].logprob < -0.5


# ---- whoever is beside it, whatever happens


def test_c02_greedy_drawn_and_masked_requests_draw_together_what_they_draw_alone(rig: Callable, model: Path) -> None:
    together = answers(rig(model, deterministic=True), list(MANY))
    for name in MANY:
        alone = answers(rig(model, deterministic=True), [name])
        assert alone == {one: together[one] for one in alone}, name
    for name in ("choosy", "choosy/1", "choosy/2"):
        tokens = together[name][0]
        assert all((after - before) % 250 in range(1, 41) for before, after in zip([0, *tokens], tokens, strict=False))


def test_c05_penalised_and_seeded_requests_answer_alike_in_either_order(rig: Callable, model: Path) -> None:
    sampling = {
        "a": {"repetition_penalty": 2.0, "max_tokens": 5},
        "b": {"temperature": 1.0, "seed": 99, "top_k": 1, "max_tokens": 4},
    }
    found = []
    for order in ("ab", "ba", "a", "b"):
        engine = rig(model, deterministic=True)
        for name in order:
            submit(engine, name, PARIS, **sampling[name])
        engine.run()
        found.append({name: engine.tokens(name) for name in sorted(order)})
    assert found[0] == found[1] == {**found[2], **found[3]}


@pytest.mark.parametrize("swap_space", [0, 1 << 20])
def test_preempted_requests_are_edited_as_if_nothing_had_happened(rig: Callable, model: Path, swap_space: int) -> None:
    expected = answers(rig(model, deterministic=True), list(MANY), 40)
    tight = rig(
        model,
        deterministic=True,
        max_num_batched_tokens=40,
        block_size=8,
        watermark_tokens=0,
        num_gpu_blocks_override=30 if "llama" in model.name else 70,
        max_model_len=128,
        swap_space_bytes=swap_space,
    )
    assert answers(tight, list(MANY), 40) == expected
    assert tight.stats.num_preemptions > 3


def test_a_rotated_request_keeps_the_counts_of_what_was_dropped(rig: Callable, model: Path) -> None:
    engine = rig(model, max_model_len=64)
    tokens = engine.alone("r", PROMPT, 90, rotates=True, sampling={"presence_penalty": 1000.0})
    assert engine.stats.rotations > 0
    assert len(set(tokens)) == 90


@pytest.mark.parametrize("tight", [False, True])
def test_steps_planned_ahead_draw_the_same_and_leave_nobody_out(rig: Callable, model: Path, tight: bool) -> None:
    settings: dict[str, object] = {"deterministic": True, "max_num_batched_tokens": 24}
    if tight:
        pages = 30 if "llama" in model.name else 70
        settings |= {"num_gpu_blocks_override": pages, "block_size": 8, "max_model_len": 128, "watermark_tokens": 0}
    expected = answers(rig(model, **settings), list(MANY))
    assert answers(rig(model, **settings, async_scheduling=True), list(MANY)) == expected


@pytest.mark.parametrize("mode", [{"enforce_eager": True}, {}, {"async_scheduling": True}], ids=str)
def test_a_device_draws_what_the_cpu_draws(
    rig: Callable, model: Path, mode: dict[str, object], request: pytest.FixtureRequest
) -> None:
    settings = {"max_num_seqs": 12, "max_num_batched_tokens": 32, "max_model_len": 128}
    expected = answers(rig(model, **settings), list(MANY))
    device: FakeDevice = request.getfixturevalue("device")
    engine = rig(model, **settings, **mode)
    device.stream.uploads.clear()
    assert answers(engine, list(MANY)) == expected
    assert engine.stats.steps < len(device.stream.uploads) <= 2 * engine.stats.steps, "edits are one copy"


def test_a_step_without_edits_replays_its_graph_beside_requests_that_had_some(
    rig: Callable, device: FakeDevice, tiny_llama_dir: Path
) -> None:
    engine = rig(tiny_llama_dir, max_num_seqs=4, max_model_len=128)
    submit(engine, "late", PROMPT, 12, min_tokens=4, stop_token_ids=[300])
    engine.run()
    assert device.num_replays == 12 - 4


def test_drafts_of_a_biased_request_stand_or_fall_by_its_edited_logits(
    rig: Callable, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = {"logit_bias": {9: 100.0}, "min_tokens": 21, "stop_token_ids": [8]}
    prompt = [256, *[9] * 10]
    engine = rig(model, deterministic=True, speculative="ngram")
    monkeypatch.setattr(Speculation, "cost", lambda *_: 0.0)
    assert engine.alone("a", prompt, 30, sampling=sampling) == [9] * 30
    assert engine.stats.accepted_draft_tokens > 15
    assert engine.alone("b", prompt, 30, sampling={**sampling, "presence_penalty": 0.5})[0] == 9
    assert engine.last("b").ledger.draft_tokens == 0


# ---- what fails, fails alone


class Stuck(Walk):
    """Allows nothing from the fourth token on."""

    num_accepted = 0

    def allowed(self) -> np.ndarray:
        return super().allowed() * np.int32(self.num_accepted < 3)

    def accept(self, token_id: int) -> None:
        super().accept(token_id)
        self.num_accepted += 1


class Broken(Walk):
    """Raises at the third token."""

    num_accepted = 0

    def accept(self, token_id: int) -> None:
        self.num_accepted += 1
        if self.num_accepted == 3:
            raise RuntimeError("matcher lost its way")
        super().accept(token_id)


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize(
    ("constraint", "num_tokens", "code", "message"),
    [
        (Stuck, 3, "invalid", "no token may come at place 3 of the output: it has ended"),
        (Broken, 3, "step_failed", "RuntimeError: matcher lost its way"),
    ],
)
def test_a_request_that_no_token_is_left_to_fails_alone(
    rig: Callable,
    tiny_llama_dir: Path,
    constraint: type,
    num_tokens: int,
    code: str,
    message: str,
    async_scheduling: bool,
) -> None:
    expected = rig(tiny_llama_dir).alone("other", PROMPT, 12)
    engine = rig(tiny_llama_dir, async_scheduling=async_scheduling)
    sampling = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True, grammar=GRAMMAR)
    engine.engine.submit(
        EngineRequest(request_id="a", prompt_token_ids=PROMPT, sampling=sampling, children=["b"]), constraint
    )
    engine.submit("other", PROMPT, 12)
    engine.run()
    for name in "ab":
        assert len(engine.tokens(name)) == num_tokens
        assert engine.last(name).failure.code == code
        assert message in engine.last(name).failure.message
        assert [delta.finish_reason for delta in engine.deltas[name]].count(FinishReason.ERROR) == 1
    assert engine.tokens("other") == expected


def test_a_request_whose_prompt_no_token_may_follow_fails_with_its_samples(rig: Callable, tiny_llama_dir: Path) -> None:
    engine = rig(tiny_llama_dir)
    submit(engine, "other", PROMPT, 5)
    sampling = SamplingParams(
        max_tokens=9, min_tokens=1, temperature=0.0, stop_token_ids=list(range(1, 41)), grammar=GRAMMAR
    )
    request = EngineRequest(request_id="a", prompt_token_ids=PROMPT, sampling=sampling, children=["b", "c"])
    engine.engine.submit(request, Walk)
    engine.run()
    for name in "abc":
        assert [delta.token_ids for delta in engine.deltas[name]] == [[]]
        assert "all that the grammar allows would end it before min_tokens" in engine.last(name).failure.message
    assert len(engine.tokens("other")) == 5


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"logit_bias": {5000: 1.0}}, "logit_bias: token id 5000 is outside the vocabulary of"),
        ({"grammar": GRAMMAR}, "a grammar came before the tokens"),
    ],
)
def test_what_cannot_be_edited_is_refused_at_once(
    rig: Callable, tiny_llama_dir: Path, sampling: dict[str, object], message: str
) -> None:
    engine = rig(tiny_llama_dir)
    engine.submit("a", PROMPT, 5, children=["b"], sampling=sampling)
    engine.run()
    for name in "ab":
        assert engine.last(name).failure.code == "invalid"
        assert message in engine.last(name).failure.message
    assert engine.engine._draws._editors == {}


def test_nothing_is_kept_of_requests_that_have_ended(rig: Callable, tiny_llama_dir: Path) -> None:
    engine = rig(tiny_llama_dir)
    answers(engine, list(MANY))
    submit(engine, "aborted", PROMPT, 20, repetition_penalty=2.0)
    engine.step()
    assert isinstance(engine.engine._draws._editors["aborted"], LogitEditor)
    engine.engine.abort(["aborted"])
    engine.run()
    assert engine.engine._draws._editors == {}
