"""The least that each part of a step must read and multiply: weights once, the pages that attention sees once.

Arithmetic on a `ModelSpec` and lengths; measures nothing. Rows that go from one part to the next stay in the caches at
the sizes of a step, so that they cost no bytes here, and parts that only work on rows have no cost at all. That makes
floors lower, never higher, than they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.step_recorder import Part
from engine.input_batch import LEAST_IDLE_TOKENS
from kernels.roofline import AttentionShape, Cost, prefill
from models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class StepShape:
    """Rows that each sequence computes, its length with them, and how many rows go through the head."""

    query_lens: Sequence[int]
    seq_lens: Sequence[int]
    num_draws: int

    @property
    def num_rows(self) -> int:
        return sum(self.query_lens)

    @property
    def last_query_lens(self) -> Sequence[int]:
        """Rows of each sequence that the last layer computes: of a prompt the one that is drawn from."""
        if self.num_rows - self.num_draws < LEAST_IDLE_TOKENS:
            return self.query_lens
        assert self.num_draws == len(self.query_lens), "one draw a sequence"
        return [1] * self.num_draws


def step_costs(
    spec: ModelSpec, shape: StepShape, weight_bytes: Mapping[Part, int], *, page_bytes: int, table_bytes: float
) -> dict[Part, Cost]:
    """By part. ``weight_bytes`` are those of all layers; ``page_bytes`` of an element of pages, ``table_bytes`` of one
    of the embedding.
    """
    q_size, kv_size = spec.num_q_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    per_layer = {
        Part.QKV: spec.hidden_size * (q_size + 2 * kv_size),
        Part.OUTPUT: spec.hidden_size * q_size,
        Part.MLP: 3 * spec.hidden_size * spec.intermediate_size,
    }
    last_lens = shape.last_query_lens
    rows = shape.num_rows * (spec.num_layers - 1) + sum(last_lens)
    num_rows = {Part.QKV: shape.num_rows * spec.num_layers, Part.OUTPUT: rows, Part.MLP: rows}
    costs = {
        part: Cost(weight_bytes.get(part, 0), 2 * num_rows[part] * elements) for part, elements in per_layer.items()
    }
    head = 2 * shape.num_draws * spec.hidden_size * spec.vocab_size
    costs[Part.HEAD] = Cost(weight_bytes.get(Part.HEAD, 0), head)
    costs[Part.EMBEDDING] = Cost(round(shape.num_rows * spec.hidden_size * table_bytes))
    # without the rows of queries and outputs, which stay in the caches
    heads = AttentionShape(spec.num_q_heads, spec.num_kv_heads, spec.head_dim, dtype_bytes=0, page_bytes=page_bytes)
    query_lens = [shape.query_lens] * (spec.num_layers - 1) + [last_lens]
    layers = (
        prefill(heads, lens, shape.seq_lens, layer.window) for lens, layer in zip(query_lens, spec.layers, strict=True)
    )
    costs[Part.ATTENTION] = sum(layers, Cost(0))
    return costs
