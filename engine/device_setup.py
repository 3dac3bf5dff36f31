"""DeviceSetup: from a loaded model to a DeviceRunner with its graphs, on a GPU.

Before there are pages it runs the largest steps that can come, over null sequences alone, to see what memory they take;
then the pages are cut, and graphs recorded over them. Whatever touches the device (memory, queue, graphs, sampling)
comes in through the constructor.

Imports nothing but torch and what comes with it, so that `benchmarks/gpu_check.sh` needs no more.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from block_manager.kv_cache import KVCache
from engine.cuda_graphs import CudaGraphRecorder, GraphRecorder, graph_sizes
from engine.device_runner import DeviceRunner
from engine.input_batch import InputBatch
from engine.memory_budget import CudaMemory, MemoryBudget, MemoryReader, MemoryUse, StartMemory, measure
from engine.page_plan import PagePlan
from engine.page_pool import PagePool
from engine.paged_model import PagedModel
from engine.prefix_sharing import PrefixSharing
from engine.step_buffers import StepBuffers, StepShape
from engine.step_executor import InlineExecutor, QueueExecutor, StepExecutor
from engine.step_stream import CudaStream, StepStream
from engine.token_sampler import KernelSampler, TokenSampler
from kernels.roofline import FASTEST, DataSheet, sheet_of
from models.model import CausalLM

if TYPE_CHECKING:
    from engine.choices import Choices
    from engine.config import EngineConfig

CHANGES_PER_STEP = 65_536  # of block tables that travel with a step's own copy: 3/4 MB, a million tokens of pages


class DeviceSetup:
    """For devices with memory of their own."""

    def __init__(
        self,
        config: EngineConfig,
        choices: Choices,
        plan: PagePlan,
        *,
        memory: MemoryReader,
        stream: StepStream,
        sampler: TokenSampler,
        recorder: GraphRecorder | None,
        sheet: DataSheet | None = None,
    ) -> None:
        """``recorder`` None: every step is launched kernel by kernel. ``largest`` is the largest step there can be.

        ``sheet``: what the device is said to reach, by which steps that share prefixes are judged; None: none shares.
        """
        self.memory = StartMemory(memory)
        self._config = config
        self._plan = plan
        self._reader = memory
        self._stream = stream
        self._sampler = sampler
        self._recorder = recorder
        num_seqs = config.max_num_seqs
        can_share = sheet is not None and num_seqs > 1 and not config.deterministic and plan.groups[0].window is None
        self._sheet = sheet if can_share else None
        num_tokens = max(config.max_num_batched_tokens, num_seqs)
        # few members are few programs, which are split most, and so take most memory for parts
        self.largest = StepShape(num_tokens, num_seqs, num_seqs, *((1, 2) if can_share else ()))
        largest_plan = (num_seqs // 2, num_seqs) if can_share else ()
        with self.memory.taking(MemoryUse.BUFFERS):
            buffers = StepBuffers(
                sum(group.pages_per_block for group in plan.groups),
                stream=stream,
                largest=StepShape(num_tokens, num_seqs, num_seqs, *largest_plan),
                num_changes=CHANGES_PER_STEP,
            )
            self._inputs = InputBatch(
                plan.groups, config.block_size, num_seqs, choices.max_model_len, stream.device, buffers=buffers
            )

    @classmethod
    def of_gpu(cls, config: EngineConfig, choices: Choices, plan: PagePlan) -> DeviceSetup:
        """With the real device behind everything."""
        return cls(
            config,
            choices,
            plan,
            memory=CudaMemory(choices.device),
            stream=CudaStream(choices.device),
            sampler=KernelSampler(),
            recorder=None if config.enforce_eager else CudaGraphRecorder(),
            sheet=sheet_of(torch.cuda.get_device_name(choices.device)) or FASTEST,
        )

    def measure(self, model: CausalLM) -> MemoryBudget | None:
        """Run the largest step, and the largest that is recorded; nothing where the pages' size is given."""
        self.memory.note("weights", model.weight_bytes())
        if self._config.num_gpu_blocks_override is not None or self._config.kv_cache_memory_bytes is not None:
            return None
        runner = self._runner(PagedModel(model, self._plan.allocate(0, self._stream.device)))
        num_seqs = self._config.max_num_seqs
        with self.memory.taking(MemoryUse.LARGEST_STEP):
            budget = measure(
                self._reader,
                self._config.gpu_memory_utilization,
                model.weight_bytes(),
                largest_step=partial(runner.run_null, self.largest, keeps_raw=True),
                largest_decode=partial(runner.run_null, StepShape(num_seqs, num_seqs, num_seqs)),
                num_graphs=len(self._graph_sizes()),
                logits_bytes=num_seqs * model.spec.vocab_size * torch.float32.itemsize,
            )
        self.memory.note("activations", budget.largest_step)
        return budget

    def make_runner(self, model: CausalLM, pool: PagePool) -> tuple[DeviceRunner, list[str]]:
        """Record the graphs; where that fails, say so and go on without."""
        self.memory.note("pages", pool.num_pages * self._plan.page_bytes)
        warnings = [] if pool.host_cache is None else self._pinned(pool.host_cache)
        runner = self._runner(PagedModel(model, pool.kv_cache, pool.host_cache, self._stream))
        if self._sheet is not None:
            with self.memory.taking(MemoryUse.LARGEST_STEP):
                runner.run_null(StepShape(2, 2, 2, 1, 2))  # so that its kernels are compiled and loaded
        if self._recorder is None:
            return runner, warnings
        try:
            with self.memory.taking(MemoryUse.GRAPHS):
                runner.record_graphs(self._recorder, self._graph_sizes())
        except RuntimeError as error:
            first_line = str(error).partition("\n")[0]
            warnings.append(f"CUDA graphs could not be recorded, so that decoding is slower: {first_line}")
        return runner, warnings

    def _pinned(self, pages: KVCache) -> list[str]:
        """Let pages of the host move without waiting; where that fails, say so."""
        try:
            for tensor in pages.tensors():
                self._stream.pin(tensor)
        except RuntimeError as error:
            first_line = str(error).partition("\n")[0]
            return [f"--swap-space could not be pinned, so that steps wait for pages that move: {first_line}"]
        return []

    def make_executor(self) -> StepExecutor:
        return QueueExecutor() if self._config.async_scheduling else InlineExecutor()

    def _runner(self, model: PagedModel) -> DeviceRunner:
        order, sharing = self._inputs.prefix_order, None
        if self._sheet is not None and order is not None:
            sharing = PrefixSharing(order, model.sharing_cost(self._sheet), self._config.block_size)
        return DeviceRunner(model, self._inputs, self._sampler, self._stream, self._config.max_num_seqs, sharing)

    def _graph_sizes(self) -> tuple[int, ...]:
        return () if self._recorder is None else graph_sizes(self._config.max_num_seqs)
