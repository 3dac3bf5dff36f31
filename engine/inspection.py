"""Inspection: what a model is, and how much of it fits into a memory, before a weight is loaded.

By the arithmetic that an engine cuts its pages by. Imports no torch, and asks no device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import KV_CACHE_DTYPE_ALIASES
from engine.errors import ConfigError
from engine.machine import available_memory
from engine.page_shape import CPU_MEMORY_SHARE, ELEMENT_BYTES, PageShape
from models.description import Description, describe
from models.spec import ModelSpec

__all__ = ["Inspection", "KVFit", "PageBudget", "inspect_model"]

_UNLIMITED = 1 << 40  # tokens


@dataclass(frozen=True, slots=True)
class PageBudget:
    """``pages`` bytes of ``memory`` are for pages; ``explanation`` says why."""

    memory: int
    pages: int
    explanation: str


@dataclass(frozen=True, slots=True)
class KVFit:
    """KV memory with pages of one dtype.

    ``full_token_bytes`` and ``windowed_token_bytes`` are of one token in all layers of that kind. Of the lengths asked
    for, ``sequence_bytes`` is what a sequence holds at most, and ``num_sequences`` how many fit side by side.
    ``num_tokens``: of one sequence that has all pages, whatever the model's context is.
    """

    kv_dtype: str
    page_bytes: int
    full_token_bytes: int
    windowed_token_bytes: int
    num_pages: int
    num_tokens: int
    sequence_bytes: tuple[int, ...]
    num_sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """The answer. ``lengths`` in tokens; ``fits`` has one entry for each KV dtype."""

    description: Description
    max_model_len: int
    block_size: int
    budget: PageBudget
    lengths: tuple[int, ...]
    fits: tuple[KVFit, ...]


def inspect_model(
    model: str | None,
    *,
    revision: str | None = None,
    offline: bool = False,
    memory: int | None = None,
    kv_cache_memory_bytes: int | None = None,
    kv_cache_dtype: str = "auto",
    lengths: Sequence[int] | None = None,
    block_size: int = 16,
    max_model_len: int | None = None,
) -> Inspection:
    """Inspect. ``memory`` is for weights and pages; None: what a server would take of this machine's.

    ``kv_cache_memory_bytes`` is for pages alone. ``kv_cache_dtype`` "auto": every dtype there is. Raises ConfigError or
    CheckpointError.
    """
    dtypes = _dtypes(kv_cache_dtype)
    description = describe(model, revision=revision, offline=offline)
    spec = description.spec
    context = max_model_len or spec.max_position
    if context > spec.max_position:
        raise ConfigError(f"--max-model-len {context}: the model was made for at most {spec.max_position} tokens")
    asked = tuple(lengths) if lengths else _default_lengths(context)
    if too_long := [length for length in asked if length > context]:
        raise ConfigError(f"--lengths {too_long[0]}: the context is {context} tokens")
    budget = _budget(description.weights.num_bytes, memory, kv_cache_memory_bytes)
    fits = tuple(_fit(spec, block_size, dtype, budget.pages, asked) for dtype in dtypes)
    return Inspection(description, context, block_size, budget, asked, fits)


def _dtypes(name: str) -> tuple[str, ...]:
    if name == "auto":
        return tuple(ELEMENT_BYTES)
    name = KV_CACHE_DTYPE_ALIASES.get(name, name)
    if name not in ELEMENT_BYTES:
        raise ConfigError(f"--kv-cache-dtype {name}: choose one of auto, {', '.join(ELEMENT_BYTES)}")
    return (name,)


def _default_lengths(context: int) -> tuple[int, ...]:
    return tuple(length for length in (1024, 8192, 32_768) if length <= context) or (context,)


def _budget(weights: int, memory: int | None, kv_cache_memory_bytes: int | None) -> PageBudget:
    if kv_cache_memory_bytes is not None:
        return PageBudget(kv_cache_memory_bytes, kv_cache_memory_bytes, "for pages alone, as asked for")
    if memory is not None:
        return PageBudget(memory, max(0, memory - weights), "as asked for, less the weights as they are stored")
    left = available_memory()
    pages = int(max(0, left - weights) * CPU_MEMORY_SHARE)
    explanation = f"free here; of what the weights leave, a server on CPUs takes {CPU_MEMORY_SHARE:.0%} by itself"
    return PageBudget(left, pages, explanation)


def _fit(spec: ModelSpec, block_size: int, kv_dtype: str, room: int, lengths: Sequence[int]) -> KVFit:
    shape = PageShape.of(spec, block_size, ELEMENT_BYTES[kv_dtype])
    num_pages = room // shape.page_bytes
    pages = [shape.sequence_pages(length) for length in lengths]
    return KVFit(
        kv_dtype=kv_dtype,
        page_bytes=shape.page_bytes,
        full_token_bytes=shape.token_bytes(windowed=False),
        windowed_token_bytes=shape.token_bytes(windowed=True),
        num_pages=num_pages,
        num_tokens=shape.longest(num_pages, _UNLIMITED),
        sequence_bytes=tuple(one * shape.page_bytes for one in pages),
        num_sequences=tuple(num_pages // one for one in pages),
    )
