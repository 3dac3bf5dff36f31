"""Steps on a device with memory of its own, on a fake one: the same answers, by graphs and by one copy a step."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine import device_setup
from engine.config import ConfigError
from engine.messages import RequestDelta
from scheduler.request import FinishReason
from tests.engine.fake_device import FakeDevice

PROMPT = [256, *range(40, 75)]
SAMPLING = [
    {},
    {"temperature": 4.0, "seed": 11},
    {"temperature": 2.0, "top_k": 20, "seed": -5},
    {"temperature": 6.0, "top_p": 0.75, "seed": (1 << 63) - 1},  # 8.0 would draw one of two tokens as likely to 1e-6
    {"temperature": 1.0, "min_p": 0.125, "seed": 3},
]
MODES = {
    "eager": {"enforce_eager": True},
    "eager-async": {"enforce_eager": True, "async_scheduling": True},
    "graphs": {},
    "graphs-async": {"async_scheduling": True},
}


@pytest.fixture(params=["tiny_llama_dir", "tiny_gemma3_dir"])
def model(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def workload(engine: object, most_samples: int = 4) -> dict[str, list[int]]:
    """Eleven prompts of all lengths that arrive over time, sampled in all ways, one of them for up to four."""
    rng = random.Random(4)
    for number in range(11):
        prompt = [256, *(rng.randrange(250) for _ in range(rng.choice([0, 1, 15, 16, 40])))]
        children = ["x", "y", "z"][: most_samples - 1] if number == 3 else []
        sampling = {**SAMPLING[number % len(SAMPLING)], "rank": number in (3, 7)}
        engine.submit(f"r{number}", prompt, rng.choice([3, 17, 30]), children=children, sampling=sampling)
        for _ in range(rng.choice([0, 2, 5])):
            engine.step()
    engine.run()
    assert all(engine.last(name).finish_reason is FinishReason.LENGTH for name in engine.deltas)
    return {name: engine.tokens(name) for name in engine.deltas}


def assert_same_logprobs(deltas: dict[str, list[RequestDelta]], expected: dict[str, list[RequestDelta]]) -> None:
    assert deltas.keys() == expected.keys()
    for name, ours in deltas.items():
        assert [delta.logprob for delta in ours] == pytest.approx([delta.logprob for delta in expected[name]], abs=1e-4)


@pytest.mark.parametrize(
    ("mode", "tight"), [("eager", False), ("eager-async", True), ("graphs", True), ("graphs-async", False)]
)
def test_answers_are_those_of_the_cpu(
    rig: Callable, model: Path, mode: str, tight: bool, request: pytest.FixtureRequest
) -> None:
    pages = (8 if "llama" in str(model) else 56) if tight else 500
    settings = {
        "num_gpu_blocks_override": pages,
        "max_num_seqs": 6,
        "max_num_batched_tokens": 32,
        "max_model_len": 128,
        "watermark_tokens": 0,
    }
    expected = rig(model, **settings)
    tokens = workload(expected)
    device: FakeDevice = request.getfixturevalue("device")
    engine = rig(model, **settings, **MODES[mode])
    device.stream.uploads.clear()
    assert workload(engine) == tokens
    assert_same_logprobs(engine.deltas, expected.deltas)
    assert (engine.stats.num_preemptions > 0) == tight
    assert (device.num_replays > 20) == mode.startswith("graphs")
    assert len(device.stream.uploads) == engine.stats.steps
    assert engine.ready.warnings == expected.ready.warnings


@pytest.mark.parametrize(("max_num_seqs", "num_graphs"), [(1, 1), (3, 3), (1000, 59)])
def test_answers_are_those_of_the_cpu_with_few_rows_and_with_many(
    rig: Callable, tiny_llama_dir: Path, max_num_seqs: int, num_graphs: int, request: pytest.FixtureRequest
) -> None:
    settings = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": 48, "max_model_len": 128}
    tokens = workload(rig(tiny_llama_dir, **settings), max_num_seqs)
    device: FakeDevice = request.getfixturevalue("device")
    engine = rig(tiny_llama_dir, **settings, async_scheduling=True)
    assert workload(engine, max_num_seqs) == tokens
    assert len(device.graphs) == num_graphs
    assert device.num_replays > 20


def test_the_next_step_is_on_its_way_before_tokens_are_read(rig: Callable, device: FakeDevice, model: Path) -> None:
    engine = rig(model, async_scheduling=True, max_num_seqs=4, max_model_len=128)
    device.stream.log.clear()
    engine.alone("a", PROMPT, 4)
    assert device.stream.log == ["send", "send", "read", "send", "read", "send", "read", "read"]


def test_without_async_scheduling_a_step_is_read_before_the_next(
    rig: Callable, device: FakeDevice, tiny_llama_dir: Path
) -> None:
    engine = rig(tiny_llama_dir, max_num_seqs=4, max_model_len=128)
    device.stream.log.clear()
    engine.alone("a", PROMPT, 3)
    assert device.stream.log == ["send", "read"] * 3


def test_a_decode_sends_a_few_hundred_bytes_however_long_the_context(
    rig: Callable, device: FakeDevice, tiny_llama_dir: Path
) -> None:
    engine = rig(tiny_llama_dir, max_num_seqs=4, max_num_batched_tokens=1024)
    device.stream.uploads.clear()
    engine.alone("a", PROMPT * 25, 40)
    prompt, *decodes = device.stream.uploads
    assert prompt > 900 * 8 * 3
    assert max(decodes) < 256


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_requests_that_are_swapped_answer_as_on_the_cpu_and_nobody_waits_for_their_pages(
    rig: Callable, model: Path, async_scheduling: bool, request: pytest.FixtureRequest
) -> None:
    rng = random.Random(10)
    prompts = {f"r{number}": [256, *(rng.randrange(250) for _ in range(40))] for number in range(6)}
    expected = rig(model)
    alone = {name: expected.alone(name, prompt, 30) for name, prompt in prompts.items()}
    device: FakeDevice = request.getfixturevalue("device")
    engine = rig(
        model,
        async_scheduling=async_scheduling,
        num_gpu_blocks_override=12 if "llama" in str(model) else 64,
        swap_space_bytes=1 << 24,
        enable_prefix_caching=False,
        max_model_len=128,
        watermark_tokens=0,
    )
    step_time = engine.engine.scheduler.outlook.step_time
    observe = step_time.observe  # whether to swap is decided by measured times: here a token takes a second
    step_time.observe = lambda num_tokens, seconds: observe(num_tokens, float(num_tokens))
    device.stream.log.clear()
    device.stream.uploads.clear()
    for name, prompt in prompts.items():
        engine.submit(name, prompt, 30)
    engine.run()
    assert {name: engine.tokens(name) for name in prompts} == alone
    assert engine.stats.num_swaps > 0
    assert device.stream.log.count("read") == engine.stats.steps
    assert len(device.stream.uploads) > engine.stats.steps  # pages, and their numbers
    host = engine.engine.runner._model._host_cache
    assert device.stream.pinned == {tensor.data_ptr() for tensor in host.tensors()}


def test_host_memory_that_cannot_be_pinned_costs_a_warning(
    rig: Callable, device: FakeDevice, tiny_llama_dir: Path
) -> None:
    device.stream.refuses_to_pin = True
    engine = rig(tiny_llama_dir, swap_space_bytes=1 << 20, max_num_seqs=2, max_model_len=128)
    assert engine.ready.warnings == [
        "--swap-space could not be pinned, so that steps wait for pages that move: CUDA error: out of memory"
    ]


def test_more_new_blocks_than_the_buffers_hold_go_before_the_step(
    rig: Callable, model: Path, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"max_num_seqs": 4, "max_model_len": 128, "enable_prefix_caching": False}
    expected = rig(model, **settings).alone("a", PROMPT, 20)
    monkeypatch.setattr(device_setup, "CHANGES_PER_STEP", 2)
    engine = rig(model, **settings)
    assert engine.alone("a", PROMPT, 20) == expected


def test_null_sequences_touch_no_page(rig: Callable, device: FakeDevice, model: Path) -> None:
    engine = rig(model, max_num_seqs=8, max_model_len=128)
    cache = engine.engine.runner._model._kv_cache
    for pages in cache.tensors():
        pages[0].fill_(123.0)
    for name in "abc":  # three decodes in a graph of four
        engine.submit(name, PROMPT, 6)
    engine.run()
    assert [graph.replays for graph in device.graphs] == [0, 5, 0, 0]
    assert all(bool((pages[0] == 123.0).all()) for pages in cache.tensors())


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_failed_step_ends_what_it_ran_and_the_next_request_is_served(
    rig: Callable, device: FakeDevice, tiny_llama_dir: Path, async_scheduling: bool
) -> None:
    engine = rig(tiny_llama_dir, async_scheduling=async_scheduling, max_num_seqs=4, max_model_len=128)
    expected = engine.alone("before", PROMPT, 8)
    engine.submit("victim", PROMPT, 8)
    engine.step()
    engine.step()
    runner = engine.engine.runner
    graphs, runner._graphs._graphs = runner._graphs._graphs, dict.fromkeys(runner._graphs._graphs)
    engine.step()  # replays None
    runner._graphs._graphs = graphs
    engine.run()
    assert engine.last("victim").failure.code == "step_failed"
    assert engine.alone("after", PROMPT, 8) == expected


def test_graphs_that_cannot_be_recorded_cost_a_warning_and_speed(
    rig: Callable, device: FakeDevice, tiny_llama_dir: Path
) -> None:
    device.fails_after = 2
    engine = rig(tiny_llama_dir, max_num_seqs=8, max_model_len=128)
    assert engine.ready.warnings == [
        "CUDA graphs could not be recorded, so that decoding is slower: "
        "operation not permitted when stream is capturing"
    ]
    engine.alone("a", PROMPT, 8)
    assert device.num_replays == 0


def test_too_little_memory_for_graphs_ends_the_start_with_numbers(
    rig: Callable, device: FakeDevice, tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(step: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(device, "record", run_out)
    device.memory.used = 900_000_000
    with pytest.raises(
        ConfigError,
        match=r"^out of GPU memory while recording CUDA graphs \(0\.00 GB of weights, 0\.00 GB of pages, "
        r"0\.90 GB in use of 1\.07 GB\): try --enforce-eager, or a lower --gpu-memory-utilization$",
    ):
        rig(tiny_llama_dir, max_num_seqs=8, num_gpu_blocks_override=10)


def test_the_host_must_not_wait_inside_a_graph(
    rig: Callable, device: FakeDevice, tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake recorder tells; what it lets pass holds on a GPU too."""
    sample = device.sample
    monkeypatch.setattr(device, "sample", lambda logits, draws: sample(logits + float(logits.max()), draws))
    (warning,) = rig(tiny_llama_dir, max_num_seqs=2, max_model_len=128).ready.warnings
    assert "not permitted when stream is capturing" in warning
