"""Adapters in real engines: each answer is that of the merged model, whatever else runs and however it is run."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from block_manager.block_table import ChangedBlocks
from engine.adapter_messages import LoadAdapter, UnloadAdapter
from engine.adapters import AdapterUse
from engine.config import ConfigError
from engine.lora_rows import lora_rows
from engine.messages import Pooling
from engine.sampling_params import Grammar
from models.lora import LoraRows
from scheduler.batch import ScheduledBatch, ScheduledRequest
from scheduler.request import FinishReason
from scheduler.step_time import StepTime
from tests.lora_adapters import merged_model, write_adapter

NAMES = ("", "poet", "critic")
PROMPT = [256, *range(40, 75)]  # 36 tokens: two full pages and a partly filled one


def prompts() -> list[list[int]]:
    """Three that begin alike, as long as two pages and a bit, and two others."""
    rng = random.Random(3)
    common = [256, *(rng.randrange(250) for _ in range(31))]
    endings = [[rng.randrange(250) for _ in range(length)] for length in (3, 9, 20)]
    others = [[256, *(rng.randrange(250) for _ in range(length))] for length in (4, 40)]
    return [*(common + ending for ending in endings), *others]


@pytest.fixture(scope="module")
def model(tiny_llama_dir: Path) -> Path:
    return tiny_llama_dir


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("adapters")
    return {name: str(write_adapter(directory / name, model, seed=seed)) for seed, name in enumerate(NAMES) if name}


@pytest.fixture(scope="module")
def merged(model: Path, adapters: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("merged")
    return {"": model} | {name: merged_model(directory / name, model, Path(path)) for name, path in adapters.items()}


@pytest.fixture(scope="module")
def expected(rig: Callable, merged: dict[str, Path]) -> dict[tuple[str, int], list[int]]:
    """By adapter and number of the prompt, the greedy tokens of the merged model with an engine to itself."""
    found = {}
    for name, directory in merged.items():
        engine = rig(directory, max_model_len=256)
        for number, prompt in enumerate(prompts()):
            found[name, number] = engine.alone(str(number), prompt, 30)
    for one, other in (("", "poet"), ("", "critic"), ("poet", "critic")):
        assert sum(found[one, number] != found[other, number] for number in range(5)) >= 4
    return found


def submit_all(engine: object, number_of_turn: int = 0) -> None:
    for name in NAMES:
        for number, prompt in enumerate(prompts()):
            request_id = f"{number_of_turn} {name}/{number}"
            engine.submit(request_id, prompt, 30, adapter=name, children=[f"{request_id}+"] if number == 1 else [])


SQUEEZED = {"watermark_tokens": 0, "max_model_len": 256}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 16, "max_num_seqs": 8},
        {"enable_prefix_caching": False, "async_scheduling": True},
        {**SQUEEZED, "num_gpu_blocks_override": 40},
        {**SQUEEZED, "num_gpu_blocks_override": 40, "swap_space_bytes": 1 << 22},
        {"speculative": "ngram"},
        {"deterministic": True},
    ],
    ids=["plain", "chunked", "async", "preempted", "swapped", "speculative", "deterministic"],
)
def test_each_request_of_a_mixed_engine_answers_as_the_merged_model_alone(
    rig: Callable, model: Path, adapters, expected, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "swap_space_bytes" in settings:
        observe = StepTime.observe  # whether to swap is decided by measured times: here a token takes a second
        monkeypatch.setattr(StepTime, "observe", lambda self, tokens, _: observe(self, tokens, float(tokens)))
    engine = rig(model, adapters=adapters, **settings)
    for turn in range(2):  # the second time over cached pages
        submit_all(engine, turn)
        engine.run()
        for name, number in expected:
            assert engine.tokens(f"{turn} {name}/{number}") == expected[name, number]
            if number == 1:
                assert engine.tokens(f"{turn} {name}/1+") == expected[name, 1]
    assert (engine.stats.num_preemptions > 0) == ("num_gpu_blocks_override" in settings)
    assert (engine.stats.num_swaps > 0) == ("swap_space_bytes" in settings)


def test_on_a_device_with_graphs_adapters_answer_as_the_merged_models(
    device, rig: Callable, model: Path, adapters, expected
) -> None:
    engine = rig(model, adapters=adapters, num_gpu_blocks_override=400, max_num_seqs=8, async_scheduling=True)
    submit_all(engine)
    engine.run()
    for name, number in expected:
        assert engine.tokens(f"0 {name}/{number}") == expected[name, number]


def test_small_steps_that_are_replayed_and_those_with_adapters_do_not_disturb_each_other(
    rig: Callable, model: Path, adapters, merged
) -> None:
    engine = rig(model, adapters=adapters, quantization="int8")
    plain = rig(model, quantization="int8").alone("plain", PROMPT, 20)
    assert engine.alone("first", PROMPT, 20) == plain
    poem = engine.alone("poem", PROMPT, 20, adapter="poet")
    assert engine.alone("second", PROMPT, 20) == plain
    assert poem != plain
    engine.submit("both 1", PROMPT, 20)
    engine.submit("both 2", PROMPT, 20, adapter="poet")
    engine.run()
    assert (engine.tokens("both 1"), engine.tokens("both 2")) == (plain, poem)


def test_what_is_read_of_a_prompt_is_the_adapters(rig: Callable, model: Path, adapters, merged) -> None:
    found = []
    for engine, name in ((rig(model, adapters=adapters), "poet"), (rig(merged["poet"]), "")):
        engine.alone("cached", PROMPT, 1, adapter=name)
        engine.submit("base", PROMPT, 4, prompt_logprobs=0)
        engine.submit("logprobs", PROMPT, 1, adapter=name, prompt_logprobs=2)
        engine.submit("embedding", PROMPT, 0, adapter=name, pooling=Pooling.MEAN)
        engine.run()
        told = [one for delta in engine.deltas["logprobs"] for one in delta.prompt_logprobs]
        vector = engine.last("embedding").embedding
        found.append(([one.logprob for one in told[1:]], struct.unpack(f"<{len(vector) // 4}f", vector)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), atol=1e-4, rtol=1e-4)


# ---- the prefix cache


def test_pages_are_shared_by_requests_of_equal_adapters_and_by_no_others(rig: Callable, model: Path, adapters) -> None:
    engine = rig(model, adapters={**adapters, "twin of poet": adapters["poet"]})
    cached = []
    for number, name in enumerate(("", "poet", "critic", "poet", "twin of poet", "")):
        engine.alone(str(number), PROMPT, 1, adapter=name)
        cached.append(engine.last(str(number)).num_cached_tokens)
    assert cached == [0, 0, 0, 32, 32, 32]


def test_pages_of_an_adapter_are_not_found_under_its_name_when_others_weights_have_it(
    rig: Callable, model: Path, adapters, merged
) -> None:
    engine = rig(model, adapters={"poet": adapters["poet"]})
    engine.alone("1", PROMPT, 1, adapter="poet")
    change(engine, LoadAdapter(1, "poet", adapters["critic"], replaces=True))
    tokens = engine.alone("2", PROMPT, 20, adapter="poet")
    assert engine.last("2").num_cached_tokens == 0
    assert tokens == rig(merged["critic"]).alone("x", PROMPT, 20)


# ---- adapters come and go


def change(engine: object, message: LoadAdapter | UnloadAdapter) -> None:
    adapters = engine.engine.adapters
    if isinstance(message, UnloadAdapter):
        answers = [adapters.unload(message)]
    else:
        adapters.begin_load(message)
        while not (answers := adapters.take_loaded()):
            pass
    assert [answer.problem for answer in answers] == [""]


@pytest.mark.parametrize("settings", [{}, {"async_scheduling": True}], ids=["plain", "async"])
def test_a_request_keeps_the_adapter_it_began_with(rig: Callable, model: Path, adapters, expected, settings) -> None:
    engine = rig(model, adapters=adapters, **settings)
    prompt = prompts()[0]
    engine.submit("old", prompt, 30, adapter="poet")
    for _ in range(5):
        engine.step()
    change(engine, LoadAdapter(1, "poet", adapters["critic"], replaces=True))
    change(engine, UnloadAdapter(2, "critic"))
    engine.submit("new", prompt, 30, adapter="poet")
    engine.submit("lost", prompt, 30, adapter="critic")
    engine.submit("aborted", prompt, 30, adapter="poet")
    engine.step()
    engine.engine.abort(["aborted"])
    engine.run()
    assert engine.tokens("old") == expected["poet", 0]
    assert engine.tokens("new") == expected["critic", 0]
    failure = engine.last("lost").failure
    assert (failure.code, failure.message) == ("unknown_adapter", "no adapter 'critic' is loaded")
    change(engine, UnloadAdapter(3, "poet"))
    engine.engine._executor.submit(lambda: None).result()  # what was to be done before it is done
    places = engine.engine.runner._model._model.projections()
    assert all(not place.deltas._parts for place in places.values())


def test_a_request_that_is_refused_or_waits_for_its_grammar_lets_go_of_its_adapter(
    rig: Callable, model: Path, adapters
) -> None:
    engine = rig(model, adapters=adapters, num_gpu_blocks_override=30)
    uses = engine.engine.adapters
    engine.submit("too long", [256] * 3000, 30, adapter="poet")
    engine.run()
    assert engine.last("too long").failure.code == "never_fits"
    engine.engine.use_tokens([bytes([token % 256]) for token in range(300)])
    grammar = Grammar(kind="regex", text="[a-z]+")
    engine.submit("waits", PROMPT, 5, adapter="poet", children=["waits too"], sampling={"grammar": grammar})
    assert uses.use_of("waits") == uses.use_of("waits too") != AdapterUse()
    engine.engine.abort(["waits", "waits too"])
    assert uses.use_of("waits") == uses.use_of("waits too") == AdapterUse()
    engine.run()
    assert engine.last("waits").finish_reason is FinishReason.ABORT


def test_an_engine_does_not_start_without_an_adapter_unless_it_starts_again(
    rig: Callable, model: Path, adapters, tmp_path: Path
) -> None:
    lost = {**adapters, "lost": str(tmp_path)}
    problem = f"{tmp_path} has no adapter_config.json: it is no adapter in PEFT's layout"
    with pytest.raises(ConfigError) as refused:
        rig(model, adapters=lost)
    assert str(refused.value) == f"--lora-modules lost: {problem}"
    engine = rig(model, adapters=lost, skips_lost_adapters=True)
    assert [one.name for one in engine.ready.adapters] == ["poet", "critic"]
    assert engine.ready.warnings[-1] == f"the adapter 'lost' is not served any more: {problem}"


# ---- rows


def batch(*shares: tuple[int, int]) -> ScheduledBatch:
    """Requests with so many tokens and an adapter."""
    return ScheduledBatch(
        tuple(
            ScheduledRequest(
                str(number), 1, [0] * tokens, 0, True, True, (str(number),), 0, ChangedBlocks(0, ()), adapter=adapter
            )
            for number, (tokens, adapter) in enumerate(shares)
        )
    )


def test_a_step_without_adapters_has_no_rows_of_any() -> None:
    assert lora_rows(batch((3, 0), (1, 0)), torch.tensor) is None


def test_neighbours_with_one_adapter_are_one_slice_and_others_indices() -> None:
    rows = lora_rows(batch((3, 5), (2, 5), (1, 0), (4, 2), (1, 0), (2, 2), (1, 2)), torch.tensor)
    assert isinstance(rows, LoraRows)
    (first, contiguous), (second, scattered) = rows.parts
    assert (first, contiguous) == (5, slice(0, 5))
    assert second == 2
    assert scattered.tolist() == [6, 7, 8, 9, 11, 12, 13]
