"""vLLM's scheduler under the load of `benchmarks.scheduler`; run by it, with an interpreter that has vLLM.

    python benchmarks/vllm_scheduler.py RUNNING STEPS CONTEXT BLOCK_SIZE

Prints one line of JSON: vLLM's version, and the microseconds of thread time of `schedule()` and
`update_from_output()` in each step. Its own Scheduler and KVCacheManager, prefix caching on, no model.
"""

# mypy: ignore-errors
from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.pop(0)  # this folder has a scheduler of its own

import torch
import vllm
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "vocab_size": 51_000,
    "max_position_embeddings": 8192,
}


def make_scheduler(folder: str, running: int, num_blocks: int, context: int, block_size: int) -> Scheduler:
    longest = context + 4096
    model = ModelConfig(model=folder, dtype="bfloat16", max_model_len=longest, skip_tokenizer_init=True)
    limits = SchedulerConfig(
        max_num_seqs=running,
        max_num_batched_tokens=max(8192, running),
        max_model_len=longest,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
    )
    cache = CacheConfig(block_size=block_size, enable_prefix_caching=True, prefix_caching_hash_algo="sha256")
    config = VllmConfig(
        model_config=model, scheduler_config=limits, cache_config=cache, device_config=DeviceConfig(device="cpu")
    )
    config.cache_config.block_size = block_size  # the platform may have chosen another
    config.cache_config.num_gpu_blocks = num_blocks
    layer = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
    pages = KVCacheConfig(
        num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)]
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=pages,
        block_size=block_size,
        hash_block_size=block_size,
        log_stats=True,
        structured_output_manager=StructuredOutputManager(config),
    )


def step(scheduler: Scheduler, *, all_draw: bool) -> tuple[float, float, int]:
    """One step; microseconds of each half, and how many requests it ran."""
    began = time.thread_time_ns()
    scheduled = scheduler.schedule()
    planned = time.thread_time_ns()
    ids = list(scheduled.num_scheduled_tokens)
    done = {one.request_id for one in scheduler.running if one.num_computed_tokens >= one.num_prompt_tokens}
    output = ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={name: place for place, name in enumerate(ids)},
        sampled_token_ids=[[11] if all_draw or name in done else [] for name in ids],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )
    executed = time.thread_time_ns()
    scheduler.update_from_output(scheduled, output)
    return (planned - began) / 1000, (time.thread_time_ns() - executed) / 1000, len(ids)


def main() -> None:
    running, steps, context, block_size = map(int, sys.argv[1:])
    hash_function = get_hash_fn_by_name("sha256")
    init_none_hash(hash_function)
    hasher = get_request_block_hasher(block_size, hash_function)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(TINY_LLAMA))
        num_blocks = running * ((context + steps + 300) // block_size + 4)
        scheduler = make_scheduler(folder, running, num_blocks, context, block_size)
    for index in range(running):
        scheduler.add_request(
            Request(
                request_id=f"request-{index}",
                prompt_token_ids=[(index * 7919 + position) % 50_000 for position in range(context)],
                sampling_params=SamplingParams(ignore_eos=True, max_tokens=4000),
                pooling_params=None,
                block_hasher=hasher,
            )
        )
    while len(scheduler.running) < running or any(one.num_output_tokens == 0 for one in scheduler.running):
        step(scheduler, all_draw=False)
    gc.collect()
    gc.freeze()
    rows = [step(scheduler, all_draw=True) for _ in range(steps)]
    if any(count != running for _, _, count in rows):
        raise RuntimeError("not every request ran in every step")
    print(
        json.dumps(
            {"version": vllm.__version__, "schedule": [row[0] for row in rows], "update": [row[1] for row in rows]}
        )
    )


if __name__ == "__main__":
    main()
