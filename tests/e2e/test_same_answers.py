"""The same 16 requests give the same tokens alone, together, in small chunks and under preemption."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from block_manager.groups import plan_groups
from block_manager.kv_cache import KVCache
from block_manager.manager import BlockManager
from block_manager.sizing import Capacity
from engine.config import resolve_checkpoint
from engine.engine import Engine
from engine.input_batch import InputBatch
from engine.messages import EngineRequest, SamplingParams
from engine.runner import Runner
from kernels.backends import choose_backend
from models.loader import load_model
from models.model import CausalLM
from scheduler.scheduler import Scheduler, SchedulerConfig

MAX_TOKENS = 24
BLOCK_SIZE = 16
CONTEXT = 1024


@pytest.fixture(scope="module")
def model(default_gguf: Path) -> CausalLM:
    checkpoint = resolve_checkpoint(str(default_gguf))
    backend, warnings = choose_backend(torch.device("cpu"))
    assert not warnings
    return load_model(
        checkpoint,
        checkpoint.read_spec(),
        device=torch.device("cpu"),
        dtype=torch.float32,
        backend=backend,
        on_progress=None,
    )


def prompts() -> list[list[int]]:
    """16 prompts of 4 to 600 tokens, some past the window of 512, some sharing their first 100 tokens."""
    rng = random.Random(16)
    shared = [rng.randrange(1000, 20000) for _ in range(100)]
    lengths = [4, 15, 16, 17, 31, 33, 48, 64, 80, 100, 120, 128, 150, 200, 300, 600]
    rng.shuffle(lengths)
    return [
        [2, *(shared[: min(n - 1, 100)] if i % 3 == 0 else []), *(rng.randrange(1000, 20000) for _ in range(n))][:n]
        for i, n in enumerate(lengths)
    ]


def build(model: CausalLM, num_pages: int, max_num_batched_tokens: int, *, caching: bool) -> Engine:
    spec = model.spec
    groups = plan_groups([layer.window for layer in spec.layers])
    cpu = torch.device("cpu")
    kv_cache = KVCache(groups, num_pages, BLOCK_SIZE, spec.num_kv_heads, spec.head_dim, torch.float32, cpu)
    for pages in kv_cache.key_pages + kv_cache.value_pages:
        pages.fill_(float("nan"))  # a read of anything that was not written shows
    blocks = BlockManager(groups, num_pages, BLOCK_SIZE, enable_prefix_caching=caching)
    scheduler = Scheduler(SchedulerConfig(16, max_num_batched_tokens), blocks)
    runner = Runner(model, kv_cache, InputBatch(groups, BLOCK_SIZE, 16, CONTEXT, cpu))
    return Engine(
        scheduler,
        runner,
        eos_token_ids=frozenset(spec.eos_token_ids),
        page_bytes=kv_cache.page_bytes,
        audit_interval=1,
    )


def generate(engine: Engine, batches: list[list[tuple[str, list[int]]]]) -> dict[str, list[int]]:
    """Run each batch of requests to its end; afterwards no page may be held and the audit must be clean."""
    tokens: dict[str, list[int]] = {}
    finished = set()
    for batch in batches:
        for request_id, prompt in batch:
            tokens[request_id] = []
            sampling = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
            engine.submit(EngineRequest(request_id=request_id, prompt_token_ids=prompt, sampling=sampling))
        while engine.has_work:
            for delta in engine.step().deltas:
                assert delta.error is None
                tokens[delta.request_id] += delta.token_ids
                if delta.finish_reason is not None:
                    finished.add(delta.request_id)
    assert finished == set(tokens)
    usage = engine.scheduler.blocks.usage()
    assert usage.free + sum(usage.cached) == usage.total
    assert engine.audit() == []
    assert engine.stats().audit_failures == 0
    return tokens


@pytest.mark.slow
def test_c14_f04_g10_same_tokens_alone_together_in_chunks_and_under_preemption(model: CausalLM) -> None:
    requests = [(f"r{i}", prompt) for i, prompt in enumerate(prompts())]
    groups = plan_groups([layer.window for layer in model.spec.layers])
    longest = max(len(prompt) for _, prompt in requests) + MAX_TOKENS - 1
    tight = Capacity(groups, BLOCK_SIZE, 0, 512).peak_pages(longest, 128)

    alone = generate(build(model, 4000, 512, caching=False), [[request] for request in requests])
    together = build(model, 4000, 512, caching=False)
    chunked = build(model, 4000, 64, caching=True)
    squeezed = build(model, tight, 512, caching=True)

    assert all(len(tokens) == MAX_TOKENS for tokens in alone.values())
    assert generate(together, [requests]) == alone
    assert together.stats().preemptions == 0
    assert generate(chunked, [requests]) == alone
    assert chunked.stats().preemptions == 0
    assert generate(squeezed, [requests]) == alone
    assert squeezed.stats().preemptions >= 5
    assert squeezed.stats().recomputed_tokens > 0
