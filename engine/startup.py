"""Start-up: from an EngineConfig to an Engine that serves, with the time of every stage.

The order matters: weights first, then pages from the memory that is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from block_manager.groups import LayerGroup, plan_groups
from block_manager.kv_cache import KVCache, scale_bytes
from block_manager.manager import BlockManager
from block_manager.sizing import Capacity, page_bytes
from engine.config import KV_CACHE_DTYPE_ALIASES, ConfigError, EngineConfig, resolve_checkpoint
from engine.engine import Engine
from engine.input_batch import InputBatch
from engine.machine import available_memory, usable_cores
from engine.messages import EngineReady, LoadProgress
from engine.runner import Runner
from engine.step_executor import ThreadExecutor
from kernels.backends import check_page_dtype, choose_backend
from models.loader import load_model
from models.spec import ModelSpec
from scheduler.config import SchedulerConfig
from scheduler.policy import FairShare, FirstComeFirstServed, Policy, PriorityWithAging
from scheduler.scheduler import Scheduler

CPU_MEMORY_SHARE = 0.4  # of what is available after the weights: the machine has other tenants
GPU_MEMORY_SHARE = 0.9  # of the device, weights and activations included
GPU_ACTIVATION_BYTES = 1 << 30
HOST_COPY_BYTES_PER_SECOND = 5e9  # of pages that move to host memory or back; an estimate for choosing


class StageTimes:
    """Seconds of each start-up stage, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - started, 3)


def build_engine(
    config: EngineConfig, times: StageTimes, on_progress: Callable[[LoadProgress], None]
) -> tuple[Engine, EngineReady]:
    """Load the model, carve the pages, wire the parts. Raises ConfigError or CheckpointError with one sentence."""
    config.validate()
    device = _choose_device(config.device)
    threads = config.threads or usable_cores()
    torch.set_num_threads(threads)
    checkpoint = resolve_checkpoint(config.model, revision=config.revision)
    spec = checkpoint.read_spec()
    dtype = _choose_dtype(config.dtype, spec, device)
    kv_dtype_name, kv_dtype = _choose_kv_dtype(config.kv_cache_dtype, dtype, device)
    max_model_len = _choose_max_model_len(config, spec)
    backend, warnings = choose_backend(device)

    with times.stage("weights"):
        model = load_model(
            checkpoint,
            spec,
            device=device,
            dtype=dtype,
            backend=backend,
            on_progress=lambda done, total: on_progress(LoadProgress(stage="weights", done=done, total=total)),
        )

    with times.stage("pages"):
        groups = plan_groups([layer.window for layer in spec.layers])
        shape = (config.block_size, spec.num_kv_heads, spec.head_dim)
        bytes_per_page = page_bytes(groups, *shape, kv_dtype.itemsize, scale_bytes(kv_dtype))
        num_pages = _choose_num_pages(config, groups, bytes_per_page, max_model_len, device)
        if config.kv_cache_memory_bytes and num_pages < config.kv_cache_memory_bytes // bytes_per_page:
            warnings.append(
                f"only {num_pages * bytes_per_page} of --kv-cache-memory-bytes {config.kv_cache_memory_bytes} are "
                f"taken: {config.max_num_seqs} requests of full length hold no more"
            )
        num_host_pages = config.swap_space_bytes // bytes_per_page
        _check_memory(num_host_pages + (num_pages if device.type == "cpu" else 0), bytes_per_page)
        kv_cache = KVCache(groups, num_pages, *shape, kv_dtype, device)
        host_cache = None
        if num_host_pages:
            host_cache = KVCache(groups, num_host_pages, *shape, kv_dtype, torch.device("cpu"))
        blocks = BlockManager(
            groups,
            num_pages,
            config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            num_host_pages=num_host_pages,
        )
        inputs = InputBatch(groups, config.block_size, config.max_num_seqs, max_model_len, device)

    capacity = Capacity(groups, config.block_size, num_pages, config.max_num_batched_tokens)
    if not capacity.fits(max_model_len - 1):
        warnings.append(
            f"{num_pages} pages hold one sequence of at most {capacity.max_tokens(max_model_len - 1) + 1} tokens, less "
            f"than the context of {max_model_len}: longer requests are refused"
        )
    limits = SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        max_model_len=max_model_len,
        max_queued_requests=config.max_queued_requests,
        max_queued_tokens=config.max_queued_tokens,
        watermark_tokens=config.watermark_tokens,
        max_overtakes=config.max_overtakes,
        seconds_per_page=bytes_per_page / HOST_COPY_BYTES_PER_SECOND,
    )
    scheduler = Scheduler(limits, blocks, _choose_policy(config))
    engine = Engine(
        scheduler,
        Runner(model, kv_cache, inputs, host_cache),
        eos_token_ids=frozenset(spec.eos_token_ids),
        page_bytes=bytes_per_page,
        audit_interval=config.audit_interval,
        seed=config.seed,
        queue_timeout=config.queue_timeout,
        executor=ThreadExecutor(partial(torch.set_num_threads, threads)) if config.async_scheduling else None,
    )
    ready = EngineReady(
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        kv_dtype=kv_dtype_name,
        threads=threads,
        attention_backend=backend.name,
        weight_bytes=model.weight_bytes(),
        kv_bytes=num_pages * bytes_per_page,
        num_pages=num_pages,
        page_bytes=bytes_per_page,
        block_size=config.block_size,
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        vocab_size=spec.vocab_size,
        layer_windows=[layer.window for layer in spec.layers],
        eos_token_ids=list(spec.eos_token_ids),
        stage_seconds=times.seconds,
        warnings=warnings,
        stats=engine.stats(),
    )
    return engine, ready


def _choose_policy(config: EngineConfig) -> Policy:
    if config.scheduling_policy == PriorityWithAging.name:
        return PriorityWithAging(config.priority_aging)
    if config.scheduling_policy == FairShare.name:
        return FairShare(config.tenant_weights)
    return FirstComeFirstServed()


def _choose_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: this torch sees no GPU; use --device cpu, or install a CUDA build of torch")
    return torch.device(name)


def _choose_dtype(name: str, spec: ModelSpec, device: torch.device) -> torch.dtype:
    if name != "auto":
        dtype = getattr(torch, name)
        assert isinstance(dtype, torch.dtype)
        return dtype
    if spec.checkpoint_dtype not in ("bfloat16", "float16"):
        return torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if spec.checkpoint_dtype == "bfloat16" else torch.float16
    # float16 has no fast matrix units on CPUs, and bfloat16 only on some
    return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32


def _choose_kv_dtype(name: str, dtype: torch.dtype, device: torch.device) -> tuple[str, torch.dtype]:
    """The dtype of the pages and the name it has among the choices."""
    if name == "auto":
        return str(dtype).removeprefix("torch."), dtype
    name = KV_CACHE_DTYPE_ALIASES.get(name, name)
    kv_dtype = torch.float8_e4m3fn if name == "fp8_e4m3" else getattr(torch, name)
    assert isinstance(kv_dtype, torch.dtype)
    try:
        check_page_dtype(kv_dtype, device)
    except ValueError as error:
        raise ConfigError(f"--kv-cache-dtype {name}: {error}") from error
    return name, kv_dtype


def _choose_max_model_len(config: EngineConfig, spec: ModelSpec) -> int:
    if config.max_model_len is None:
        return spec.max_position
    if config.max_model_len > spec.max_position:
        raise ConfigError(
            f"--max-model-len {config.max_model_len}: the model was made for at most {spec.max_position} tokens"
        )
    return config.max_model_len


def _choose_num_pages(
    config: EngineConfig, groups: tuple[LayerGroup, ...], bytes_per_page: int, max_model_len: int, device: torch.device
) -> int:
    if config.num_gpu_blocks_override is not None:
        return config.num_gpu_blocks_override
    if config.kv_cache_memory_bytes is not None:
        budget, source = config.kv_cache_memory_bytes, f"--kv-cache-memory-bytes {config.kv_cache_memory_bytes}"
    elif device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        share = config.gpu_memory_utilization or GPU_MEMORY_SHARE
        budget = int(total * share) - (total - free) - GPU_ACTIVATION_BYTES
        source = f"{share:.0%} of the GPU's {total / 1e9:.1f} GB, less what is in use"
    else:
        left = available_memory()
        share = config.gpu_memory_utilization or CPU_MEMORY_SHARE
        budget, source = int(left * share), f"{share:.0%} of the {left / 1e9:.1f} GB of memory left"
    if budget < bytes_per_page:
        raise ConfigError(f"no room for KV pages: {source} is {budget} bytes, and one page takes {bytes_per_page}")
    # more than every sequence at full length could hold would never be used
    most = Capacity(groups, config.block_size, 0, config.max_num_batched_tokens).peak_pages(
        max_model_len, config.max_num_batched_tokens
    )
    return min(budget // bytes_per_page, config.max_num_seqs * most)


def _check_memory(num_pages: int, bytes_per_page: int) -> None:
    """Refuse pages in host memory that is not there: untouched they cost nothing, later they kill the process."""
    left = available_memory()
    if num_pages * bytes_per_page > left:
        raise ConfigError(
            f"{num_pages} KV pages of {bytes_per_page} bytes are {num_pages * bytes_per_page / 1e9:.2f} GB, more than "
            f"the {left / 1e9:.2f} GB of memory left: lower --num-gpu-blocks-override, --kv-cache-memory-bytes or "
            "--swap-space"
        )
