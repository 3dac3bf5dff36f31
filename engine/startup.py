"""Start-up: from an EngineConfig to an Engine that serves, with the time of every stage.

The order matters: weights first, then pages from the memory that is left, then graphs over those pages.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from engine.adapters import AdapterError, Adapters
from engine.choices import Choices
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import ConfigError
from engine.idle_work import IdleWork
from engine.lora_store import LoraStore
from engine.memory_budget import MemoryUse
from engine.messages import EngineReady, LoadProgress
from engine.packed_keeper import PackedKeeper
from engine.page_plan import PagePlan
from engine.page_pool import PagePool
from engine.page_reserve import PageReserve
from engine.setup import choose_setup
from engine.step_executor import StepExecutor
from engine.weight_memory import check_weight_memory
from models.loader import load_model, stored_forms
from models.model import CausalLM
from models.packed_weights import PackedWeights, default_directory
from scheduler.config import SchedulerConfig
from scheduler.policy import FairShare, FirstComeFirstServed, Policy, PriorityWithAging
from scheduler.scheduler import Scheduler

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
    """Load the model, cut the pages, wire the parts. Raises ConfigError or CheckpointError with one sentence."""
    choices = Choices.of(config)
    torch.set_num_threads(choices.threads)
    plan = PagePlan.of(choices.spec, config.block_size, choices.kv_dtype)
    setup = choose_setup(config, choices, plan)
    if not choices.has_own_memory:
        check_weight_memory(choices)
    with times.stage("weights"), setup.memory.taking(MemoryUse.WEIGHTS):
        packed = _packed_weights(config, choices)
        model = _load(choices, packed, on_progress)
        executor = setup.make_executor()
        adapters, lost = _load_adapters(config, model, executor)
    with times.stage("pages"):
        budget = setup.measure(model)
        with setup.memory.taking(MemoryUse.PAGES):
            pool = PagePool.cut(config, choices, plan, budget, 0 if packed is None else packed.mapped_bytes)
    with times.stage("runner"):
        runner, warnings = setup.make_runner(model, pool)
    engine = Engine(
        _make_scheduler(config, choices, plan, pool),
        runner,
        eos_token_ids=frozenset(choices.spec.eos_token_ids),
        vocab_size=choices.spec.vocab_size,
        page_bytes=plan.page_bytes,
        audit_interval=config.audit_interval,
        seed=config.seed,
        queue_timeout=config.queue_timeout,
        executor=executor,
        adapters=adapters,
        idle_work=_idle_work(choices, pool, packed),
    )
    ready = EngineReady(
        device=str(choices.device),
        dtype=str(choices.dtype).removeprefix("torch."),
        kv_dtype=choices.kv_dtype_name,
        threads=choices.threads,
        attention_backend=choices.backend.name,
        weight_form=_weight_form(choices),
        weight_bytes=model.weight_bytes(),
        packed_weights=packed.shown_path if packed is not None and packed.are_there else None,
        kv_bytes=pool.num_pages * plan.page_bytes,
        num_pages=pool.num_pages,
        page_bytes=plan.page_bytes,
        block_size=config.block_size,
        max_model_len=choices.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        num_speculative_tokens=config.most_drafts,
        vocab_size=choices.spec.vocab_size,
        hidden_size=choices.spec.hidden_size,
        layer_windows=[layer.window for layer in choices.spec.layers],
        eos_token_ids=list(choices.spec.eos_token_ids),
        stage_seconds=times.seconds,
        warnings=[*choices.warnings, *lost, *pool.warnings, *warnings],
        stats=engine.stats(),
        adapters=adapters.reports(),
    )
    return engine, ready


def _packed_weights(config: EngineConfig, choices: Choices) -> PackedWeights | None:
    """Where packed weights are kept from one start to the next; None where none are, or may be."""
    if choices.has_own_memory or choices.forms is None or not config.keep_packed_weights:
        return None
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: of a user without a home
        return PackedWeights.of(choices.checkpoint, choices.spec, choices.forms, default_directory())
    return None


def _idle_work(choices: Choices, pool: PagePool, packed: PackedWeights | None) -> list[IdleWork]:
    """Pages first: a request wants them before another start wants weights."""
    pages = [] if choices.has_own_memory else [PageReserve(pool.manager.pool, pool.kv_cache)]
    return [*pages, *([] if packed is None else [PackedKeeper(packed)])]


def _load(choices: Choices, packed: PackedWeights | None, on_progress: Callable[[LoadProgress], None]) -> CausalLM:
    return load_model(
        choices.checkpoint,
        choices.spec,
        device=choices.device,
        dtype=choices.dtype,
        backend=choices.backend,
        forms=choices.forms,
        packed=packed,
        on_progress=lambda done, total: on_progress(LoadProgress(stage="weights", done=done, total=total)),
    )


def _load_adapters(config: EngineConfig, model: CausalLM, executor: StepExecutor) -> tuple[Adapters, list[str]]:
    """Those to start with, and a warning for each that was lost. Raises ConfigError where none may be."""
    adapters = Adapters(LoraStore(model, executor, config.max_lora_rank))
    lost = []
    for name, path in config.adapters.items():
        try:
            adapters.load_now(name, path)
        except AdapterError as error:
            if not config.skips_lost_adapters:
                raise ConfigError(f"--lora-modules {name}: {error}") from None
            lost.append(f"the adapter {name!r} is not served any more: {error}")
    return adapters, lost


def _weight_form(choices: Choices) -> str:
    floats = str(choices.dtype).removeprefix("torch.")
    if choices.forms is None:
        return floats
    if not choices.forms.keeps_stored:
        return choices.forms.quantization.value
    kept, others = choices.forms.stored_names(stored_forms(choices.checkpoint, choices.spec).values())
    if not kept:
        return f"{floats} (no kernels here for {', '.join(others)})" if others else floats
    rest = f"; {', '.join(others)} as {floats}" if others else ""
    return f"in the file's own bits ({', '.join(kept)}){rest}"


def _make_scheduler(config: EngineConfig, choices: Choices, plan: PagePlan, pool: PagePool) -> Scheduler:
    limits = SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        max_model_len=choices.max_model_len,
        max_queued_requests=config.max_queued_requests,
        max_queued_tokens=config.max_queued_tokens,
        watermark_tokens=config.watermark_tokens,
        max_overtakes=config.max_overtakes,
        num_speculative_tokens=config.most_drafts,
        seconds_per_page=plan.page_bytes / HOST_COPY_BYTES_PER_SECOND,
    )
    return Scheduler(limits, pool.manager, _choose_policy(config))


def _choose_policy(config: EngineConfig) -> Policy:
    if config.scheduling_policy == PriorityWithAging.name:
        return PriorityWithAging(config.priority_aging)
    if config.scheduling_policy == FairShare.name:
        return FairShare(config.tenant_weights)
    return FirstComeFirstServed()
