"""Mixtures of experts as files write them down: their numbers, and the names of routers and experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from models.fields import Fields
from models.spec import ExpertsSpec, ModelSpec
from models.tensor_names import Cut, Placement

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def read_experts(fields: Fields, intermediate_size: int, *, is_normalised: bool, has_bias: bool = False) -> ExpertsSpec:
    """Their numbers, which configs call one or the other, and what a family says of them."""
    count = fields.integer("num_local_experts" if fields.get("num_experts") is None else "num_experts")
    per_token = fields.integer("num_experts_per_tok")
    if per_token > count:
        raise fields.error("num_experts_per_tok", f"is {per_token}, more than there are experts: {count}")
    return ExpertsSpec(count, per_token, intermediate_size, is_normalised, has_bias)


def all_sparse(spec: ModelSpec) -> ModelSpec:
    """``spec`` with a mixture in every layer."""
    return replace(spec, layers=tuple(replace(layer, is_sparse=True) for layer in spec.layers))


def with_sparse_steps(spec: ModelSpec, fields: Fields) -> ModelSpec:
    """``spec`` with mixtures where Qwen's ``decoder_sparse_step`` and ``mlp_only_layers`` have them."""
    step, dense = fields.integer("decoder_sparse_step", 1), fields.layer_numbers("mlp_only_layers")
    layers = (
        replace(layer, is_sparse=(index + 1) % step == 0 and index not in dense)
        for index, layer in enumerate(spec.layers)
    )
    return replace(spec, layers=tuple(layers))


def each_expert(name: str) -> Cut:
    """The cut of a stack that holds one tensor of every expert, called ``name`` within it."""

    def cut(spec: ModelSpec) -> Iterator[Placement]:
        for expert in _experts(spec):
            yield Placement(f"mlp.experts.{expert}.{name}", expert=expert)

    return cut


def gate_and_up(spec: ModelSpec) -> Iterator[Placement]:
    """A stack of each expert's gate and up projection, one after the other."""
    assert spec.experts is not None
    size = spec.experts.intermediate_size
    for expert in _experts(spec):
        yield Placement(f"mlp.experts.{expert}.gate_proj.weight", slice(0, size), expert)
        yield Placement(f"mlp.experts.{expert}.up_proj.weight", slice(size, 2 * size), expert)


def _experts(spec: ModelSpec) -> range:
    assert spec.experts is not None
    return range(spec.experts.num_experts)


EXPERTS: dict[str, str | Cut] = {
    "mlp.gate": "mlp.router",
    **{f"mlp.experts.*.{name}": f"mlp.experts.*.{name}" for name in PROJECTIONS},
    "mlp.experts.gate_up_proj": gate_and_up,
    "mlp.experts.down_proj": each_expert("down_proj.weight"),
}
GGUF_EXPERTS: dict[str, str | Cut] = {
    "ffn_gate_inp": "mlp.router",
    "ffn_gate_exps": each_expert("gate_proj"),
    "ffn_up_exps": each_expert("up_proj"),
    "ffn_down_exps": each_expert("down_proj"),
}
