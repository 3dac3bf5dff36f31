"""Real engines with drafts and without: the same tokens, whatever else goes on."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.config import ConfigError, EngineConfig
from scheduler.ngram_index import NgramIndex
from scheduler.request import FinishReason
from scheduler.speculation import Speculation

VOCABULARY = 250


@pytest.fixture(params=["tiny_llama_dir", "tiny_gemma3_dir"])
def model(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture
def foresee(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, object]], None]:
    """Let drafts be what is known to come, wrong from some place on or not at all, and always worth their cost."""

    def know(texts: list[list[int]]) -> None:
        source = random.Random(4)

        def propose(index: NgramIndex, token_ids: list[int], limit: int) -> list[int]:
            for text in texts:
                if text[: len(token_ids)] == token_ids:
                    draft = text[len(token_ids) :][:limit]
                    wrong = source.randrange(limit + 3)
                    draft[wrong:] = [(token + 1) % VOCABULARY for token in draft[wrong:]]
                    return draft
            return []

        monkeypatch.setattr(NgramIndex, "propose", propose)
        monkeypatch.setattr(Speculation, "cost", lambda *_: 0.0)

    return know


def requests(seed: int) -> list[dict[str, object]]:
    """Greedy ones and such that are drawn, some with end tokens, some with two samples."""
    source = random.Random(seed)
    made = []
    for number in range(8):
        sampling = source.choice(
            [
                {"temperature": 0.0},
                {"temperature": 1.0, "seed": source.randrange(1 << 60)},
                {"temperature": 0.7, "seed": 3, "top_k": 20},
                {"temperature": 1.5, "seed": 4, "top_p": 0.9, "min_p": 0.02},
            ]
        )
        if number % 3 == 0:
            sampling = {**sampling, "stop_token_ids": source.sample(range(VOCABULARY), 30)}
        made.append(
            {
                "request_id": f"r{number}",
                "prompt": [256, *(source.randrange(VOCABULARY) for _ in range(source.randrange(1, 60)))],
                "max_tokens": source.randrange(1, 40),
                "sampling": sampling,
                "children": [f"r{number}/1"] if number % 4 == 1 else [],
            }
        )
    return made


def answers(engine: object, seed: int) -> dict[str, tuple[list[int], FinishReason | None, int | None]]:
    """Submit half, and the others while they run; tokens, reason and stop token of each."""
    given = requests(seed)
    for request in given[:4]:
        engine.submit(**request)
    for _ in range(3):
        engine.step()
    for request in given[4:]:
        engine.submit(**request)
    engine.run()
    return {
        name: (engine.tokens(name), deltas[-1].finish_reason, deltas[-1].stop_token_id)
        for name, deltas in engine.deltas.items()
    }


def texts(seed: int, answered: dict[str, tuple[list[int], FinishReason | None, int | None]]) -> list[list[int]]:
    """Prompts with their answers."""
    prompts = {name: one["prompt"] for one in requests(seed) for name in (one["request_id"], *one["children"])}
    return [prompts[name] + tokens for name, (tokens, _, _) in answered.items()]


@pytest.mark.parametrize("forms", [{"deterministic": True}, {"quantization": "int8"}], ids=["float32", "int8"])
@pytest.mark.parametrize("seed", [1, 2])
def test_answers_are_the_same_with_drafts_and_without(
    rig: Callable, model: Path, foresee: Callable, forms: dict[str, object], seed: int
) -> None:
    settings = {"max_num_batched_tokens": 40, **forms}
    plain = rig(model, **settings)
    expected = answers(plain, seed)
    foresee(texts(seed, expected))
    guessing = rig(model, **settings, speculative="ngram", num_speculative_tokens=6)
    assert answers(guessing, seed) == expected
    stats = guessing.stats
    assert 40 < stats.accepted_draft_tokens < stats.draft_tokens - 30
    assert stats.generation_tokens == plain.stats.generation_tokens
    assert stats.steps < plain.stats.steps
    assert plain.stats.drafts == 0


@pytest.mark.parametrize("swap_space", [0, 1 << 20])
def test_answers_are_the_same_where_pages_run_out(
    rig: Callable, model: Path, foresee: Callable, swap_space: int
) -> None:
    """A pool for about two of them: preempted, swapped and computed again between drafts."""
    expected = answers(rig(model, deterministic=True), 5)
    foresee(texts(5, expected))
    tight = rig(
        model,
        deterministic=True,
        max_num_batched_tokens=40,
        block_size=8,
        watermark_tokens=0,
        num_gpu_blocks_override=30 if "llama" in model.name else 70,
        max_model_len=128,
        swap_space_bytes=swap_space,
        speculative="ngram",
    )
    assert answers(tight, 5) == expected
    assert tight.stats.num_preemptions > 0
    assert tight.stats.accepted_draft_tokens > 50


def test_a_delta_carries_all_tokens_of_its_step_and_the_ledger_counts_the_guesses(
    rig: Callable, model: Path, foresee: Callable
) -> None:
    prompt = [256, *range(40, 75)]
    expected = rig(model, deterministic=True).alone("a", prompt, 60)
    foresee([prompt + expected])
    engine = rig(model, deterministic=True, speculative="ngram")
    assert engine.alone("a", prompt, 60) == expected
    deltas = engine.deltas["a"]
    assert max(len(delta.token_ids) for delta in deltas) == 1 + 4
    ledger = engine.last("a").ledger
    assert ledger.accepted_draft_tokens == 60 - len(deltas) == engine.stats.accepted_draft_tokens
    assert ledger.draft_tokens == engine.stats.draft_tokens


def test_a_text_that_repeats_itself_is_guessed_from_itself(rig: Callable, tiny_gemma3_dir: Path) -> None:
    """By n-grams and the cost that steps were seen to have, with nothing put in their place."""
    prompt = [256, *([3, 1, 4, 1, 5, 9, 2, 6] * 5)]
    expected = rig(tiny_gemma3_dir, deterministic=True).alone("a", prompt, 100)
    engine = rig(tiny_gemma3_dir, deterministic=True, speculative="ngram")
    assert engine.alone("a", prompt, 100) == expected
    assert engine.stats.accepted_draft_tokens > 0


def test_samples_that_are_ranked_are_not_guessed(rig: Callable, model: Path) -> None:
    engine = rig(model, deterministic=True, speculative="ngram")
    engine.submit("a", [256, *([3, 1, 4, 1, 5, 9, 2, 6] * 5)], 30, children=["b"], sampling={"rank": True})
    engine.run()
    assert engine.stats.drafts == 0


def test_drafts_are_refused_where_steps_are_planned_ahead() -> None:
    with pytest.raises(ConfigError, match=r"--speculative ngram: .* --async-scheduling"):
        EngineConfig(model="m", speculative="ngram", async_scheduling=True).validate()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"speculative": "medusa"}, "--speculative medusa: choose one of none, ngram"),
        ({"num_speculative_tokens": 0}, "--num-speculative-tokens 0"),
        ({"num_speculative_tokens": 65}, "--num-speculative-tokens 65: must be at most 64"),
    ],
)
def test_settings_of_drafts_that_cannot_work_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(model="m", **settings).validate()


def test_drafts_are_refused_on_a_device_with_a_memory_of_its_own(
    rig: Callable, tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr("engine.choices._choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr("engine.choices._choose_dtype", lambda *_: torch.float32)
    monkeypatch.setattr("engine.choices._choose_backend", lambda *_: (None, []))
    monkeypatch.setattr("engine.choices._choose_kv_dtype", lambda *_: ("float32", torch.float32))
    with pytest.raises(ConfigError, match="--speculative ngram: not with --device cuda yet, only on CPUs"):
        rig(tiny_llama_dir, speculative="ngram")
