"""What of a GPU's memory becomes pages, on a device that is arithmetic only, and the sentences for too little of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.config import ConfigError, EngineConfig
from engine.memory_budget import GRAPH_BYTES, MemoryBudget, MemoryUse, StartMemory, measure
from engine.page_plan import PagePlan, choose_num_pages
from models.spec import LayerSpec, ModelSpec, RopeSpec
from tests.engine.fake_device import FakeDevice, FakeMemory

GB = 10**9
LLAMA_8B = ModelSpec(
    architecture="llama",
    hidden_size=4096,
    intermediate_size=14336,
    num_q_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128_256,
    max_position=131_072,
    norm_eps=1e-5,
    layers=(LayerSpec(None, RopeSpec(500_000.0)),) * 32,
    attention_scale=128**-0.5,
    tied_embeddings=False,
    activation="silu",
)
PLAN = PagePlan.of(LLAMA_8B, 16, torch.bfloat16)


def pages(config: EngineConfig, budget: MemoryBudget) -> int:
    return choose_num_pages(config, PLAN, 131_072, budget)[0]


@pytest.mark.parametrize("share", [0.5, 0.9, 0.95, None])
@pytest.mark.parametrize("others", [0, 12 * GB])
@pytest.mark.parametrize("step", [GB // 4, 6 * GB])
def test_the_share_is_honoured_within_two_percent(share: float | None, others: int, step: int) -> None:
    total, context, weights, decode = 80 * GB, GB // 2, 16 * GB, 300 * 10**6
    memory = FakeMemory(total, others + context + weights, [step, decode])
    budget = measure(
        memory,
        share,
        weights,
        largest_step=lambda: None,
        largest_decode=lambda: None,
        num_graphs=20,
        logits_bytes=50 * 10**6,
    )
    config = EngineConfig(model="m", gpu_memory_utilization=share, max_num_seqs=256)
    cache = sum(tensor.nbytes for tensor in PLAN.allocate(pages(config, budget), torch.device("meta")).tensors())
    rounded = cache + 64 * (2 << 20)  # each tensor to the allocator's next 2 MiB, at worst
    graphs = decode + 50 * 10**6 + 20 * GRAPH_BYTES
    in_use = memory.used + step + graphs
    wanted = (share or 0.9) * total
    assert 0.98 * wanted <= in_use + cache <= in_use + rounded <= wanted


def test_each_step_is_run_before_it_is_measured() -> None:
    ran: list[str] = []
    memory = FakeMemory(peaks=[70, 30])
    budget = measure(
        memory,
        0.5,
        0,
        largest_step=lambda: ran.append("step"),
        largest_decode=lambda: ran.append("decode"),
        num_graphs=1,
        logits_bytes=5,
    )
    assert ran == ["step", "step", "decode", "decode"]
    assert (budget.largest_step, budget.graphs) == (70, 30 + 5 + GRAPH_BYTES)


def test_without_graphs_nothing_is_kept_for_them() -> None:
    ran: list[str] = []
    budget = measure(
        FakeMemory(size=1000, used=100, peaks=[70]),
        0.5,
        0,
        largest_step=lambda: None,
        largest_decode=lambda: ran.append("decode"),
        num_graphs=0,
        logits_bytes=5,
    )
    assert ran == []
    assert budget.pages == 500 - 100 - 70


def test_no_room_for_a_page_is_a_sentence_with_all_the_numbers() -> None:
    budget = MemoryBudget(24 * GB, 0.9, 21 * GB, 16 * GB, GB, GB // 2)
    with pytest.raises(ConfigError) as error:
        pages(EngineConfig(model="m"), budget)
    assert str(error.value) == (
        "no room for KV pages: 90% of the GPU's 24.00 GB, less 21.00 GB in use (16.00 GB of it weights), 1.00 GB for "
        "the largest step and 0.50 GB for CUDA graphs, is -1036314880 bytes, and one page takes 2097152: raise "
        "--gpu-memory-utilization, or lower --max-num-batched-tokens"
    )


def test_pages_that_no_request_could_fill_are_not_taken() -> None:
    budget = MemoryBudget(80 * GB, 0.9, 16 * GB, 16 * GB, GB, 0)
    config = EngineConfig(model="m", max_num_seqs=2)
    assert pages(config, budget) == 2 * 131_072 // 16


def test_what_the_user_says_goes_before_what_was_measured() -> None:
    budget = MemoryBudget(80 * GB, 0.9, 16 * GB, 16 * GB, GB, 0)
    assert pages(EngineConfig(model="m", num_gpu_blocks_override=7), budget) == 7
    assert pages(EngineConfig(model="m", kv_cache_memory_bytes=5 * 2097152 + 1), budget) == 5


@pytest.mark.parametrize(
    ("use", "sentence"),
    [
        (
            MemoryUse.WEIGHTS,
            "out of GPU memory while loading the weights (0.60 GB in use of 1.07 GB): try a smaller --dtype",
        ),
        (
            MemoryUse.LARGEST_STEP,
            "while running the largest step (0.60 GB in use of 1.07 GB): try a lower --max-num-batched",
        ),
        (MemoryUse.PAGES, "while cutting the pages (0.60 GB in use of 1.07 GB): try a lower --gpu-memory-utilization"),
    ],
)
def test_running_out_of_memory_ends_in_one_sentence(use: MemoryUse, sentence: str) -> None:
    memory = StartMemory(FakeMemory(used=600_000_000))
    with pytest.raises(ConfigError) as error, memory.taking(use):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nGPU 0 has ...")
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_too_little_memory_for_the_buffers_of_steps_is_a_sentence_too(
    rig: Callable, device: FakeDevice, tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*arguments: object, **settings: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("engine.device_setup.StepBuffers", run_out)
    device.memory = FakeMemory(used=900_000_000)
    with pytest.raises(
        ConfigError,
        match=r"^out of GPU memory while making block tables and buffers of steps \(0\.90 GB in use of 1\.07 GB\): "
        "try a lower --max-num-seqs, --max-model-len or --max-num-batched-tokens$",
    ):
        rig(tiny_llama_dir)


def test_other_errors_are_not_taken_for_it() -> None:
    with pytest.raises(RuntimeError, match="illegal memory access"), StartMemory(FakeMemory()).taking(MemoryUse.PAGES):
        raise RuntimeError("illegal memory access")


def test_a_start_on_a_device_cuts_its_pages_from_what_the_largest_step_leaves(
    rig: Callable, device: FakeDevice, tiny_llama_dir: Path
) -> None:
    device.memory = FakeMemory(100_000_000, 60_000_000, [10_000_000])
    sizes = {"max_num_seqs": 64, "max_model_len": 2048, "num_gpu_blocks_override": None}
    settings = {**sizes, "gpu_memory_utilization": 0.9, "enforce_eager": True}
    ready = rig(tiny_llama_dir, **settings).ready
    assert ready.page_bytes == 8192
    assert ready.num_pages == (30_000_000 - 10_000_000 - 4 * (2 << 20) - 8192) // 8192
    with pytest.raises(ConfigError, match=r"no room for KV pages: 70% of the GPU.s 0\.10 GB, less 0\.06 GB in use"):
        rig(tiny_llama_dir, **{**settings, "gpu_memory_utilization": 0.7})
