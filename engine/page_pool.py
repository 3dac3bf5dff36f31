"""PagePool: the pages of one engine, on device and host, and the manager that says who holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from block_manager.kv_cache import KVCache
from block_manager.manager import BlockManager
from block_manager.sizing import Capacity
from engine.errors import ConfigError
from engine.memory_budget import MemoryBudget
from engine.page_plan import PagePlan, check_host_memory, choose_num_pages
from kernels.cpu.huge_pages import use_huge_pages

if TYPE_CHECKING:
    from engine.choices import Choices
    from engine.config import EngineConfig


@dataclass(frozen=True, slots=True)
class PagePool:
    """``num_pages`` pages in ``kv_cache``; ``host_cache`` takes those that move out, where there is swap space."""

    num_pages: int
    kv_cache: KVCache
    host_cache: KVCache | None
    manager: BlockManager
    warnings: tuple[str, ...]

    @classmethod
    def cut(
        cls,
        config: EngineConfig,
        choices: Choices,
        plan: PagePlan,
        budget: MemoryBudget | None,
        mapped_bytes: int = 0,
    ) -> PagePool:
        """Take the memory, for the rest see `choose_num_pages`. Raises ConfigError where there is too little."""
        num_pages, warnings = choose_num_pages(config, plan, choices.max_model_len, budget, mapped_bytes)
        num_host_pages = config.swap_space_bytes // plan.page_bytes
        check_host_memory(num_host_pages + (0 if choices.has_own_memory else num_pages), plan, mapped_bytes)
        manager = BlockManager(
            plan.groups,
            num_pages,
            config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            num_host_pages=num_host_pages,
        )
        capacity = Capacity(plan.groups, config.block_size, num_pages, config.max_num_batched_tokens)
        if not capacity.fits(1):
            raise ConfigError(
                f"{num_pages} KV pages hold no request at all: one token takes {capacity.peak_pages(1, 1)} of this "
                "model's; raise --num-gpu-blocks-override, --kv-cache-memory-bytes or --gpu-memory-utilization"
            )
        longest = choices.max_model_len
        if not capacity.fits(longest - 1):
            warnings.append(
                f"{num_pages} pages hold one sequence of at most {capacity.max_tokens(longest - 1) + 1} tokens, less "
                f"than the context of {longest}: longer requests are refused"
            )
        kv_cache = plan.allocate(num_pages, choices.device)
        for tensor in kv_cache.tensors():
            use_huge_pages(tensor)
        return cls(
            num_pages,
            kv_cache,
            plan.allocate_on_host(num_host_pages) if num_host_pages else None,
            manager,
            tuple(warnings),
        )
