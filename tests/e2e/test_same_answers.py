"""The same 16 requests give the same tokens alone, together, in small chunks and under preemption."""

from __future__ import annotations

import random

import pytest
import torch

from block_manager.groups import plan_groups
from block_manager.kv_cache import KVCache
from block_manager.manager import BlockManager
from block_manager.sizing import Capacity
from engine.choices import choose_forms
from engine.config import resolve_checkpoint
from engine.engine import Engine
from engine.input_batch import InputBatch
from engine.messages import EngineRequest
from engine.runner import Runner
from engine.sampling_params import SamplingParams
from kernels.backends import choose_backend
from models.loader import load_model
from models.model import CausalLM
from scheduler.config import SchedulerConfig
from scheduler.scheduler import Scheduler

BLOCK_SIZE = 16
CONTEXT = 1024
ROOMY = 800  # pages for all requests at once; more only make audits longer


@pytest.fixture(
    scope="module", params=[("default_gguf", "auto"), ("tiny_gemma3_dir", "none")], ids=["own bits", "float32"]
)
def model(request: pytest.FixtureRequest) -> CausalLM:
    """The demo model as it is stored, and a tiny one of its architecture in float32."""
    fixture, quantization = request.param
    checkpoint = resolve_checkpoint(str(request.getfixturevalue(fixture)))
    backend, warnings = choose_backend(torch.device("cpu"))
    assert not warnings
    return load_model(
        checkpoint,
        checkpoint.read_spec(),
        device=torch.device("cpu"),
        dtype=torch.float32,
        backend=backend,
        forms=choose_forms(quantization, backend),
        on_progress=None,
    )


def requests(vocab_size: int) -> list[EngineRequest]:
    """16 requests; one crosses every window and several chunks, some share a prefix, most grow past a page or two.

    The short ones start small and grow long: that, not their prompts, is what a tight pool cannot foresee.
    """
    rng = random.Random(16)
    tokens = range(3, min(vocab_size, 20000))
    shared = rng.choices(tokens, k=100)
    lengths = [4, 15, 16, 17, 31, 33, 12, 14, 20, 9, 11, 28, 13, 10, 8, 530]
    made = []
    for index, length in enumerate(lengths):
        common = shared[: min(length - 1, 100)] if index % 3 == 0 else []
        prompt = [2, *common, *rng.choices(tokens, k=length)][:length]
        sampling = SamplingParams(max_tokens=16 if length > 512 else 24, temperature=0.0, ignore_eos=True)
        made.append(EngineRequest(request_id=f"r{index}", prompt_token_ids=prompt, sampling=sampling))
    return made


def build(model: CausalLM, num_pages: int, max_num_batched_tokens: int, *, caching: bool) -> Engine:
    spec = model.spec
    groups = plan_groups([layer.window for layer in spec.layers])
    cpu = torch.device("cpu")
    kv_cache = KVCache(groups, num_pages, BLOCK_SIZE, spec.num_kv_heads, spec.head_dim, torch.float32, cpu)
    for pages in kv_cache.key_pages + kv_cache.value_pages:
        pages.fill_(float("nan"))  # a read of anything that was not written shows
    blocks = BlockManager(groups, num_pages, BLOCK_SIZE, enable_prefix_caching=caching)
    limits = SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=max_num_batched_tokens, watermark_tokens=0)
    scheduler = Scheduler(limits, blocks)
    runner = Runner(model, kv_cache, InputBatch(groups, BLOCK_SIZE, 16, CONTEXT, cpu))
    return Engine(
        scheduler,
        runner,
        eos_token_ids=frozenset(spec.eos_token_ids),
        vocab_size=spec.vocab_size,
        page_bytes=kv_cache.page_bytes,
        audit_interval=1,
    )


def generate(engine: Engine, batches: list[list[EngineRequest]]) -> dict[str, list[int]]:
    """Run each batch of requests to its end; afterwards no page may be held and the audit must be clean."""
    tokens: dict[str, list[int]] = {}
    finished = set()
    for batch in batches:
        for request in batch:
            tokens[request.request_id] = []
            engine.submit(request)
        while engine.has_work:
            for delta in engine.step().deltas:
                assert delta.failure is None
                tokens[delta.request_id] += delta.token_ids
                if delta.finish_reason is not None:
                    finished.add(delta.request_id)
    assert finished == set(tokens)
    usage = engine.scheduler.blocks.usage()
    assert usage.free + usage.cached == usage.total
    assert engine.audit() == []
    assert engine.stats().audit_failures == 0
    return tokens


@pytest.mark.slow
def test_c14_f04_g10_same_tokens_alone_together_in_chunks_and_under_preemption(model: CausalLM) -> None:
    asked = requests(model.spec.vocab_size)
    together = build(model, ROOMY, 512, caching=False)
    chunked = build(model, ROOMY, 64, caching=True)
    # just enough for the longest request alone, in chunks of 64
    groups = plan_groups([layer.window for layer in model.spec.layers])
    tight = Capacity(groups, BLOCK_SIZE, 0, 64).peak_pages(530 + 16 - 1, 64)
    squeezed = build(model, tight, 512, caching=True)

    alone = generate(build(model, ROOMY, 512, caching=False), [[request] for request in asked])
    assert [len(tokens) for tokens in alone.values()] == [request.sampling.max_tokens for request in asked]
    assert generate(together, [asked]) == alone
    assert together.stats().num_preemptions == 0
    assert generate(chunked, [asked]) == alone
    assert chunked.stats().num_preemptions == 0
    assert generate(squeezed, [asked]) == alone
    assert squeezed.stats().num_preemptions >= 5
    assert squeezed.stats().recomputed_tokens > 0
