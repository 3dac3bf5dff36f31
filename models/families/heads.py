"""Attention heads as descriptions write them down."""

from __future__ import annotations

from dataclasses import dataclass

from models.errors import CheckpointError
from models.fields import Fields


@dataclass(frozen=True, slots=True)
class Heads:
    """Query heads, the key heads they share, and the elements of each."""

    num_q: int
    num_kv: int
    dim: int


def read_heads(fields: Fields, default_dim: int | None = None) -> Heads:
    """Heads of ``hidden_size / num_attention_heads`` elements unless ``head_dim`` or ``default_dim`` says otherwise."""
    num_q = fields.integer("num_attention_heads")
    num_kv = fields.integer("num_key_value_heads", num_q)
    if num_q % num_kv:
        raise CheckpointError(f"{fields.source}: {num_q} query heads cannot share {num_kv} key heads")
    return Heads(num_q, num_kv, fields.integer("head_dim", default_dim or fields.integer("hidden_size") // num_q))
