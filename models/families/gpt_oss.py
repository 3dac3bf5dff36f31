"""gpt-oss (OpenAI, 2025): mixtures of clamped SwiGLU, attention sinks, a window in every other layer, yarn.

Its experts are published in MXFP4, and saved by transformers as floats with columns first, gate and up row by row in
turn; files of either kind are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from models.families.experts import GGUF_EXPERTS, each_expert, read_experts
from models.families.family import Family, Values
from models.families.llama import read_llama
from models.families.names import ATTENTION, GGUF_ATTENTION, NORMS_BEFORE, TOP, gguf_names
from models.families.rope import read_rope
from models.families.windows import FULL, SLIDING, read_windows
from models.fields import Fields
from models.spec import LayerSpec, ModelSpec
from models.tensor_names import Cut, Placement, TensorNames

_THETA = 150_000.0


def _read(fields: Fields) -> ModelSpec:
    fields.refuse_unless("swiglu_limit", 7.0)
    fields.refuse_unless("swiglu_alpha", 1.702)
    spec = read_llama(fields.without("num_local_experts", "sliding_window", "layer_types", "rope_scaling"))
    rope = read_rope(fields, default_theta=_THETA, head_dim=spec.head_dim)
    windows = read_windows(fields, [FULL if index % 2 else SLIDING for index in range(fields.layer_count())])
    is_packed = fields.get("quantization_config") is not None
    return replace(
        spec,
        layers=tuple(LayerSpec(window, rope, is_sparse=True) for window in windows),
        activation="swiglu_oai",
        has_sinks=True,
        experts=read_experts(fields, spec.intermediate_size, is_normalised=True, has_bias=True),
        checkpoint_dtype="bfloat16" if is_packed else spec.checkpoint_dtype,
    )


def _gate_and_up_in_turn(ending: str, *, is_transposed: bool = False) -> Cut:
    """The cut of a stack in which the rows of each expert are one of the gate, one of up, and so on."""

    def cut(spec: ModelSpec) -> Iterator[Placement]:
        assert spec.experts is not None
        for expert in range(spec.experts.num_experts):
            for first, name in enumerate(("gate_proj", "up_proj")):
                parameter = f"mlp.experts.{expert}.{name}.{ending}"
                yield Placement(parameter, slice(first, None, 2), expert, is_transposed)

    return cut


def _gate_and_up_of_one(spec: ModelSpec) -> Iterator[Placement]:
    for first, name in enumerate(("gate_proj", "up_proj")):
        yield Placement(f"mlp.experts.*.{name}", slice(first, None, 2))


def _columns_first(spec: ModelSpec) -> Iterator[Placement]:
    for part in each_expert("down_proj.weight")(spec):
        yield replace(part, is_transposed=True)


_EXPERTS: dict[str, str | Cut] = {
    "mlp.router": "mlp.router",
    "mlp.experts.gate_up_proj": _gate_and_up_in_turn("weight", is_transposed=True),
    "mlp.experts.gate_up_proj_bias": _gate_and_up_in_turn("bias"),
    "mlp.experts.down_proj": _columns_first,
    "mlp.experts.*.gate_up_proj": _gate_and_up_of_one,
    "mlp.experts.*.down_proj": "mlp.experts.*.down_proj",
    "mlp.experts.down_proj_bias": each_expert("down_proj.bias"),
}
_GGUF_NORMS = {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"}


def _complete_gguf(values: Values) -> Values:
    """Such files do not say that yarn's bounds are not rounded to whole pairs."""
    scaling = values.get("rope_scaling")
    return values | {"rope_scaling": {**scaling, "truncate": False}} if isinstance(scaling, dict) else values


GPT_OSS = Family(
    "gpt_oss",
    architectures=("GptOssForCausalLM",),
    read=_read,
    names=TensorNames(
        "model.layers.", TOP, ATTENTION | {"self_attn.sinks": "self_attn.sinks.weight"} | _EXPERTS | NORMS_BEFORE
    ),
    gguf_architectures=("gpt-oss",),
    gguf_names=gguf_names(GGUF_ATTENTION, {"attn_sinks": "self_attn.sinks"}, GGUF_EXPERTS, _GGUF_NORMS),
    complete_gguf=_complete_gguf,
)
