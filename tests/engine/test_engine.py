"""The engine over real tiny models: samples of one prompt, swapped and rotated requests, failed steps."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.messages import STEP_PARTS, Ledger
from scheduler.request import FinishReason

PROMPT = [256, *range(40, 75)]  # 36 tokens: two full pages and a partly filled one


def prompts(count: int, length: int) -> list[list[int]]:
    rng = random.Random(count)
    return [[256, *(rng.randrange(250) for _ in range(length - 1))] for _ in range(count)]


@pytest.fixture(params=["tiny_llama_dir", "tiny_gemma3_dir"])
def model(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


# ---- samples of one prompt


def test_b06_samples_of_a_seeded_prompt_differ_and_repeat(rig: Callable, model: Path) -> None:
    drawn = []
    for _ in range(2):
        engine = rig(model)
        engine.submit("a", PROMPT, 20, children=["b", "c"], sampling={"temperature": 30.0, "seed": 42})
        engine.run()
        drawn.append([engine.tokens(name) for name in "abc"])
    assert drawn[0] == drawn[1]
    assert len({tuple(tokens) for tokens in drawn[0]}) == 3
    assert [len(tokens) for tokens in drawn[0]] == [20, 20, 20]


def test_first_sample_is_what_the_prompt_alone_draws(rig: Callable, model: Path) -> None:
    sampling = {"temperature": 30.0, "seed": 7}
    alone = rig(model).alone("a", PROMPT, 20, sampling=sampling)
    engine = rig(model)
    engine.submit("a", PROMPT, 20, children=["b"], sampling=sampling)
    engine.run()
    assert engine.tokens("a") == alone


def test_greedy_samples_share_the_prompts_pages_and_copy_only_the_last(rig: Callable, tiny_llama_dir: Path) -> None:
    engine = rig(tiny_llama_dir)
    engine.submit("p", PROMPT, 4, children=["c1", "c2", "c3"])
    engine.step()  # the prompt, and the first token of all four
    assert engine.stats.groups[0].held == 3
    assert engine.stats.groups[0].shared == 3
    engine.step()  # each writes into a third page of its own
    assert engine.stats.groups[0].held == 2 + 4
    assert engine.stats.groups[0].shared == 2
    engine.run()
    assert engine.tokens("p") == engine.tokens("c1") == engine.tokens("c2") == engine.tokens("c3")
    assert engine.stats.prompt_tokens == len(PROMPT)
    assert engine.stats.generation_tokens == 16


def test_samples_under_preemption_are_those_of_a_large_pool(rig: Callable, model: Path) -> None:
    def run(**settings: object) -> tuple[list[list[int]], int]:
        engine = rig(model, max_model_len=128, **settings)
        for number, prompt in enumerate(prompts(2, 30)):
            children = [f"{number}.{child}" for child in range(1, 4)]
            engine.submit(f"{number}.0", prompt, 60, children=children, sampling={"temperature": 30.0, "seed": number})
        engine.run()
        return [engine.tokens(f"{n}.{c}") for n in range(2) for c in range(4)], engine.stats.num_preemptions

    undisturbed, none = run()
    squeezed, some = run(num_gpu_blocks_override=24 if "llama" in str(model) else 40, watermark_tokens=0)
    assert none == 0
    assert some > 0
    assert squeezed == undisturbed


def test_c08_a_seeded_request_draws_the_same_alone_among_others_and_preempted_twice(rig: Callable, model: Path) -> None:
    sampling = {"temperature": 1.0, "seed": 7}
    children = ["seeded/1"]
    alone = rig(model, max_model_len=128)
    alone.submit("seeded", PROMPT, 60, children=children, sampling=sampling)
    alone.run()
    expected = [alone.tokens("seeded"), alone.tokens("seeded/1")]

    for pages in (None, 24 if "llama" in str(model) else 36):
        engine = rig(model, num_gpu_blocks_override=pages, watermark_tokens=0, max_model_len=128)
        for number, prompt in enumerate(prompts(7, 30)):
            engine.submit(f"other {number}", prompt, 60, sampling={"temperature": 1.0})
        engine.step()
        engine.submit("seeded", PROMPT, 60, children=children, sampling=sampling)  # the last to come gives way first
        engine.run()
        assert [engine.tokens("seeded"), engine.tokens("seeded/1")] == expected
        preemptions = [len(engine.last(name).ledger.preemptions) for name in ("seeded", "seeded/1")]
        assert (max(preemptions) >= 2) == (pages is not None), preemptions


def test_c15_a_seeded_request_draws_the_same_whether_its_prompt_is_cached_or_not(rig: Callable, model: Path) -> None:
    sampling = {"temperature": 1.0, "seed": 42}
    cold = rig(model, enable_prefix_caching=False).alone("a", PROMPT, 30, sampling=sampling)
    engine = rig(model)
    assert engine.alone("a", PROMPT, 30, sampling=sampling) == cold
    assert engine.alone("b", PROMPT, 30, sampling=sampling) == cold
    assert (engine.last("a").num_cached_tokens, engine.last("b").num_cached_tokens) == (0, 32)


def test_aborting_the_parent_before_its_prompt_is_computed_leaves_its_children(rig: Callable, model: Path) -> None:
    alone = rig(model).alone("x", PROMPT, 6)
    engine = rig(model, max_num_batched_tokens=16)
    engine.submit("p", PROMPT, 6, children=["c1", "c2"])
    engine.step()
    engine.engine.abort(["p"])
    engine.run()
    assert engine.last("p").finish_reason is FinishReason.ABORT
    assert engine.tokens("c1") == engine.tokens("c2") == alone


def test_requests_without_a_seed_follow_the_engines_seed(rig: Callable, model: Path) -> None:
    def draw(seed: int | None) -> list[list[int]]:
        engine = rig(model, seed=seed)
        return [engine.alone(name, PROMPT, 10, sampling={"temperature": 30.0}) for name in "ab"]

    first, second = draw(5)
    assert first != second
    assert draw(5) == [first, second]
    assert draw(6) != [first, second]
    assert draw(None) != draw(None)


# ---- swapped and rotated


def test_swapped_requests_compute_nothing_twice_and_answer_as_if_alone(rig: Callable, model: Path) -> None:
    engine = rig(model)
    requests = {f"r{i}": prompt for i, prompt in enumerate(prompts(6, 10))}
    alone = {name: engine.alone(name, prompt, 50) for name, prompt in requests.items()}
    pages = 12 if "llama" in str(model) else 80
    engine = rig(
        model,
        num_gpu_blocks_override=pages,
        swap_space_bytes=1 << 24,
        enable_prefix_caching=False,
        max_model_len=128,
        watermark_tokens=0,
    )
    step_time = engine.engine.scheduler.outlook.step_time
    observe = step_time.observe  # whether to swap is decided by measured times: here a token takes a second
    step_time.observe = lambda num_tokens, seconds: observe(num_tokens, float(num_tokens))
    for name, prompt in requests.items():
        engine.submit(name, prompt, 50)
    engine.run()
    assert {name: engine.tokens(name) for name in requests} == alone
    assert engine.stats.num_swaps == engine.stats.num_preemptions >= 1
    assert engine.stats.recomputed_tokens == 0
    preemptions = [one for name in requests for one in engine.last(name).ledger.preemptions]
    assert [one.kind for one in preemptions] == ["swap"] * engine.stats.num_swaps


def test_evicted_prefixes_come_back_from_the_host_with_their_contents(rig: Callable, model: Path) -> None:
    pages = 16 if "llama" in str(model) else 60
    engine = rig(model, num_gpu_blocks_override=pages, swap_space_bytes=1 << 24, max_model_len=128)
    first = engine.alone("a", PROMPT, 10)
    for number, prompt in enumerate(prompts(6, 100)):
        engine.alone(f"other{number}", prompt, 4)  # more than the pool holds: the first prompt's pages are evicted
    assert engine.alone("b", PROMPT, 10) == first
    assert engine.last("b").num_cached_tokens == 32
    assert sum(group.evicted for group in engine.stats.groups) > 0


def test_a_rotating_request_goes_on_as_the_text_that_is_left(rig: Callable, model: Path) -> None:
    context = 64
    engine = rig(model, max_model_len=context)
    tokens = engine.alone("r", PROMPT, 100, rotates=True)
    assert len(tokens) == 100
    assert engine.last("r").ledger.rotations == engine.stats.rotations > 0
    # up to the end of the context it is an ordinary request; then the first page and the last half are a new prompt
    before = context + 1 - len(PROMPT)
    assert tokens[:before] == engine.alone("s", PROMPT, before - 1)[:before] + tokens[before - 1 : before]
    text = PROMPT + tokens[:before]
    kept = text[:16] + text[-context // 2 :]
    after = context + 1 - len(kept)
    assert engine.alone("t", kept, after - 1) == tokens[before : before + after - 1]


# ---- salts and failures


def test_g07_pages_are_found_under_the_same_salt_only(rig: Callable, model: Path) -> None:
    engine = rig(model)
    cached = {}
    for name, salt in [("a", "tenant"), ("b", "tenant"), ("c", "other"), ("d", "")]:
        engine.alone(name, PROMPT, 2, cache_salt=salt)
        cached[name] = engine.last(name).num_cached_tokens
    assert cached == {"a": 0, "b": 32, "c": 0, "d": 0}
    assert engine.stats.missed_prompt_tokens["salt"] == 2 * len(PROMPT)
    assert engine.stats.missed_prompt_tokens["never_seen"] == len(PROMPT)


def test_a_failed_step_fails_what_it_ran_and_trusts_none_of_it(
    rig: Callable, model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = rig(model)
    expected = engine.alone("before", PROMPT, 8)
    engine.submit("victim", PROMPT, 8)
    with monkeypatch.context() as broken:
        broken.setattr(engine.engine.runner, "launch", lambda *step: 1 / 0)
        engine.step()
    engine.run()
    assert engine.last("victim").finish_reason is FinishReason.ERROR
    assert engine.last("victim").failure.code == "step_failed"
    assert "ZeroDivisionError" in engine.last("victim").failure.message
    assert "ZeroDivisionError" in caplog.text
    assert engine.alone("after", PROMPT, 8) == expected
    assert engine.last("after").num_cached_tokens == 0


def test_a_failing_prompt_fails_all_its_samples_at_once_and_nobody_else(
    rig: Callable, tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = rig(tiny_llama_dir)
    launch = engine.engine.runner.launch
    monkeypatch.setattr(
        engine.engine.runner,
        "launch",
        lambda batch, *step: 1 / 0 if batch.requests[0].token_ids == PROMPT else launch(batch, *step),
    )
    engine.submit("p", PROMPT, 8, children=["c1", "c2", "c3"])
    engine.step()
    assert {name: engine.last(name).finish_reason for name in ("p", "c1", "c2", "c3")} == dict.fromkeys(
        ("p", "c1", "c2", "c3"), FinishReason.ERROR
    )
    assert len(engine.alone("other", PROMPT[:-1], 8)) == 8


def test_an_audit_returns_leaked_pages_and_says_so(
    rig: Callable, tiny_llama_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = rig(tiny_llama_dir, num_gpu_blocks_override=40)
    expected = engine.alone("before", PROMPT, 8)
    blocks = engine.engine.scheduler.blocks
    blocks.pool._free_pages.remove(17)
    assert engine.engine.audit() != []
    assert "page 17 is nowhere" in caplog.text
    assert engine.engine.audit() == []
    assert engine.stats.audit_failures >= 1
    blocks.usage()
    engine.submit("after", PROMPT, 8)
    while engine.engine.has_work:
        engine.step()
    assert engine.tokens("after") == expected


def test_h05_aborting_everything_in_every_phase_gives_every_page_back(rig: Callable, model: Path) -> None:
    engine = rig(model, num_gpu_blocks_override=60, swap_space_bytes=1 << 22, max_model_len=128, max_num_seqs=8)
    rng = random.Random(5)
    live: list[str] = []
    for number, prompt in enumerate(prompts(60, 40)):
        children = [f"{number}.{child}" for child in range(rng.choice([0, 0, 2]))]
        engine.submit(f"{number}", prompt, 40, children=children, rotates=rng.random() < 0.2)
        live += [f"{number}", *children]
        engine.step()
        if rng.random() < 0.5:
            engine.engine.abort([live.pop(rng.randrange(len(live)))])
    engine.engine.abort([*live, "never known"])
    engine.run()
    endings = [delta.finish_reason for deltas in engine.deltas.values() for delta in deltas if delta.finish_reason]
    assert len(endings) == len(engine.deltas) == 60 + sum("." in name for name in engine.deltas)


# ---- what is told of steps, and of requests that end


def assert_parts_add_up(ledger: Ledger, most: float) -> None:
    phases = [ledger.queue_seconds, ledger.prefill_seconds, ledger.decode_seconds]
    assert min(phases) >= 0.0
    assert 0.0 < sum(phases) <= most


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_each_second_of_a_step_is_in_one_part_and_overlapping_steps_count_once(
    rig: Callable, tiny_llama_dir: Path, async_scheduling: bool
) -> None:
    engine = rig(tiny_llama_dir, async_scheduling=async_scheduling, audit_interval=None)
    began = time.perf_counter()
    for number, prompt in enumerate(prompts(3, 40)):
        engine.submit(f"{number}", prompt, 6, tenant="ab"[number % 2], sampling={"temperature": 1.0})
    engine.run()
    wall = time.perf_counter() - began
    stats = engine.stats
    assert list(stats.step_part_seconds) == list(STEP_PARTS)
    assert sum(stats.step_part_seconds.values()) == stats.step_seconds
    assert 0.0 < stats.step_seconds < wall
    assert stats.step_durations.total == pytest.approx(stats.step_seconds)
    assert min(stats.step_part_seconds.values()) > 0.0
    for histogram in (stats.step_durations, stats.step_tokens, stats.step_sequences):
        assert sum(histogram.counts) == stats.steps >= 6
        assert len(histogram.counts) == len(histogram.bounds) + 1
    assert stats.step_tokens.total >= 3 * (40 + 5)
    assert sum(stats.tenant_page_seconds.values()) == stats.page_seconds > 0.0
    assert stats.tenant_page_seconds.keys() == {"a", "b"}
    ledgers = [engine.last(f"{number}").ledger for number in range(3)]
    assert stats.page_seconds == pytest.approx(sum(ledger.page_seconds for ledger in ledgers))
    assert stats.tenant_page_seconds["b"] == pytest.approx(ledgers[1].page_seconds)
    for ledger in ledgers:
        assert_parts_add_up(ledger, wall)


def test_stats_that_were_told_stay_as_they_were(rig: Callable, tiny_llama_dir: Path) -> None:
    engine = rig(tiny_llama_dir)
    engine.alone("a", PROMPT, 3, tenant="x")
    before = engine.stats
    steps, seconds = before.steps, before.step_seconds
    engine.alone("b", PROMPT, 3, tenant="x")
    assert sum(before.step_tokens.counts) == steps < engine.stats.steps
    assert sum(before.step_part_seconds.values()) == seconds < engine.stats.step_seconds
    assert sum(before.tenant_page_seconds.values()) < engine.stats.page_seconds


def test_whatever_ends_a_queued_request_it_tells_what_it_cost(
    rig: Callable, tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = rig(tiny_llama_dir, max_num_seqs=2)
    clock = [100.0]
    for part in (engine.engine.scheduler, engine.engine.scheduler.planner, engine.engine.scheduler.blocks):
        monkeypatch.setattr(part, "_clock", lambda: clock[0])
    engine.submit("runs", PROMPT, 90, children=["sample"], tenant="x")
    engine.submit("waits", PROMPT, 90)
    engine.submit("late", PROMPT, 90, timeout=3.0)
    clock[0] += 1.0
    engine.step()
    clock[0] += 1.0
    engine.engine.abort(["waits", "sample"])
    clock[0] += 1.5
    engine.step()
    assert engine.stats.tenant_page_seconds == {"": 0.0, "x": 3 * 3.5}  # also of those that still hold theirs
    with monkeypatch.context() as broken:
        broken.setattr(engine.engine.runner, "launch", lambda *step: 1 / 0)
        engine.step()
    engine.run()

    def phases(name: str) -> tuple[float | None, ...]:
        ledger = engine.last(name).ledger
        return ledger.queue_seconds, ledger.prefill_seconds, ledger.decode_seconds

    assert {name: str(engine.last(name).finish_reason) for name in engine.deltas} == {
        "runs": "error",
        "sample": "abort",
        "waits": "abort",
        "late": "error",
    }
    assert phases("waits") == (2.0, None, None)
    assert phases("late") == (3.5, None, None)
    assert phases("sample") == (1.0, 0.0, 1.0)
    assert phases("runs") == (1.0, 0.0, 2.5)
    assert engine.last("sample").ledger.page_seconds == 3 * 1.0
    assert engine.last("runs").ledger.page_seconds == 3 * 2.5
    assert engine.stats.tenant_page_seconds == {"": 0.0, "x": 3 * 3.5}
    assert engine.stats.page_seconds == 3 * 3.5


def test_what_was_never_queued_has_no_ledger(rig: Callable, tiny_llama_dir: Path) -> None:
    engine = rig(tiny_llama_dir)
    engine.submit("empty", [], 5)
    engine.run()
    assert (engine.last("empty").failure.code, engine.last("empty").ledger) == ("invalid", None)
