"""EngineSetup: what differs between a CPU and a device with memory of its own when an engine starts.

A CPU's pages are a share of the memory that is left, and its steps end where they are launched. A device's pages are
what a measured step leaves, and its steps are queued; see ``engine.device_setup``.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import torch

from engine.choices import Choices
from engine.config import EngineConfig
from engine.device_setup import DeviceSetup
from engine.input_batch import InputBatch
from engine.memory_budget import MemoryBudget, MemoryUse, StartMemory
from engine.page_plan import PagePlan
from engine.page_pool import PagePool
from engine.runner import Runner
from engine.step_executor import InlineExecutor, StepExecutor, ThreadExecutor
from engine.step_result import StepRunner
from models.model import CausalLM


class EngineSetup(Protocol):
    """Steps of a start, in the order of its methods. ``memory`` explains those that run out of memory."""

    memory: StartMemory

    def measure(self, model: CausalLM) -> MemoryBudget | None:
        """What the device has left for pages; None: a share of the host's memory."""

    def make_runner(self, model: CausalLM, pool: PagePool) -> tuple[StepRunner, list[str]]:
        """A runner that is ready for its first step, and warnings."""

    def make_executor(self) -> StepExecutor:
        """Where its steps are launched."""


class HostSetup:
    """For CPUs."""

    def __init__(self, config: EngineConfig, choices: Choices, plan: PagePlan) -> None:
        self.memory = StartMemory(None)
        self._config = config
        self._choices = choices
        self._plan = plan

    def measure(self, model: CausalLM) -> None:
        return None

    def make_runner(self, model: CausalLM, pool: PagePool) -> tuple[StepRunner, list[str]]:
        with self.memory.taking(MemoryUse.BUFFERS):
            inputs = InputBatch(
                self._plan.groups,
                self._config.block_size,
                self._config.max_num_seqs,
                self._choices.max_model_len,
                self._choices.device,
                min_rows=self._choices.backend.min_rows,
            )
        return Runner(model, pool.kv_cache, inputs, pool.host_cache), []

    def make_executor(self) -> StepExecutor:
        if not self._config.async_scheduling:
            return InlineExecutor()
        return ThreadExecutor(partial(torch.set_num_threads, self._choices.threads))


def choose_setup(config: EngineConfig, choices: Choices, plan: PagePlan) -> EngineSetup:
    """The setup of the chosen device."""
    return DeviceSetup.of_gpu(config, choices, plan) if choices.has_own_memory else HostSetup(config, choices, plan)
