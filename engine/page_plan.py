"""PagePlan: how the pages of one model are made, and how many of them there will be.

Knows groups, dtypes and budgets in bytes; what is left of a device's memory is measured elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from block_manager.groups import LayerGroup
from block_manager.kv_cache import KVCache
from block_manager.sizing import Capacity
from engine.errors import ConfigError
from engine.machine import available_memory
from engine.memory_budget import ALLOCATION_BYTES, MemoryBudget
from engine.page_shape import CPU_MEMORY_SHARE, PageShape
from models.spec import ModelSpec

if TYPE_CHECKING:
    from engine.config import EngineConfig


@dataclass(frozen=True, slots=True)
class PagePlan:
    """The pages of a model: their groups, shape and dtype."""

    groups: tuple[LayerGroup, ...]
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @classmethod
    def of(cls, spec: ModelSpec, block_size: int, dtype: torch.dtype) -> PagePlan:
        shape = PageShape.of(spec, block_size, dtype.itemsize)
        return cls(shape.groups, block_size, shape.num_kv_heads, shape.head_dim, dtype)

    @property
    def page_bytes(self) -> int:
        return self.shape.page_bytes

    @property
    def shape(self) -> PageShape:
        """What of it is known without torch."""
        return PageShape(self.groups, self.block_size, self.num_kv_heads, self.head_dim, self.dtype.itemsize)

    def allocate(self, num_pages: int, device: torch.device) -> KVCache:
        """The tensors of ``num_pages`` pages and of the null page."""
        return KVCache(self.groups, num_pages, self.block_size, self.num_kv_heads, self.head_dim, self.dtype, device)

    def allocate_on_host(self, num_pages: int) -> KVCache:
        """Pages for those that move out of the device."""
        return self.allocate(num_pages, torch.device("cpu"))

    def most_pages(self, config: EngineConfig, max_model_len: int) -> int:
        """What every sequence at full length would hold; more would never be used."""
        capacity = Capacity(self.groups, self.block_size, 0, config.max_num_batched_tokens)
        return config.max_num_seqs * capacity.peak_pages(max_model_len, config.max_num_batched_tokens)

    def rounding_bytes(self) -> int:
        """What a device's allocator may add to the tensors of the pages, and the null page with them."""
        num_tensors = len(self.allocate(0, torch.device("meta")).tensors())
        return num_tensors * ALLOCATION_BYTES + self.page_bytes


def choose_num_pages(
    config: EngineConfig, plan: PagePlan, max_model_len: int, budget: MemoryBudget | None, mapped_bytes: int = 0
) -> tuple[int, list[str]]:
    """Pages of the pool, and warnings. ``budget``: of a device with memory of its own, where it was measured.

    ``mapped_bytes`` of the host's memory are weights, though the system takes them for file cache.

    Raises ConfigError where there is not room for one page, or less memory than was asked for.
    """
    if config.num_gpu_blocks_override is not None:
        return config.num_gpu_blocks_override, []
    if config.kv_cache_memory_bytes is not None:
        room, source = config.kv_cache_memory_bytes, f"--kv-cache-memory-bytes {config.kv_cache_memory_bytes}"
    elif budget is not None:
        room, source = budget.pages - plan.rounding_bytes(), str(budget)
    else:
        left = available_memory(mapped_bytes)
        share = config.gpu_memory_utilization or CPU_MEMORY_SHARE
        room, source = int(left * share), f"{share:.0%} of the {left / 1e9:.1f} GB of memory left"
    if room < plan.page_bytes:
        hint = ": raise --gpu-memory-utilization, or lower --max-num-batched-tokens" if budget is not None else ""
        raise ConfigError(
            f"no room for KV pages: {source}, is {room} bytes, and one page takes {plan.page_bytes}{hint}"
        )
    num_pages = min(room // plan.page_bytes, plan.most_pages(config, max_model_len))
    if config.kv_cache_memory_bytes and num_pages < room // plan.page_bytes:
        taken = num_pages * plan.page_bytes
        return num_pages, [
            f"only {taken} of --kv-cache-memory-bytes {config.kv_cache_memory_bytes} are taken: "
            f"{config.max_num_seqs} requests of full length hold no more"
        ]
    return num_pages, []


def check_host_memory(num_pages: int, plan: PagePlan, mapped_bytes: int = 0) -> None:
    """Refuse pages in host memory that is not there: untouched they cost nothing, later they kill the process."""
    left, wanted = available_memory(mapped_bytes), num_pages * plan.page_bytes
    if wanted > left:
        raise ConfigError(
            f"{num_pages} KV pages of {plan.page_bytes} bytes are {wanted / 1e9:.2f} GB, more than the "
            f"{left / 1e9:.2f} GB of memory left: lower --num-gpu-blocks-override, --kv-cache-memory-bytes or "
            "--swap-space"
        )
