"""What GPT-NeoX and Phi say alike: LayerNorm, a plain MLP with biases, heads that turn in part.

A family says what it calls keys and which part of a head turns by default; what differs between them is an argument.
"""

from __future__ import annotations

from models.families.activations import GELUS
from models.families.heads import Heads
from models.families.rope import longest_length, read_rope
from models.fields import Fields
from models.spec import LayerSpec, ModelSpec, NormKind, Parallel


def read_layer_norm_spec(
    fields: Fields,
    architecture: str,
    heads: Heads,
    *,
    rotary_part: float,
    activation: str,
    parallel: Parallel,
    attention_bias: bool,
    head_bias: bool = False,
) -> ModelSpec:
    """The spec; ``rotary_part`` and ``activation`` hold where the config says nothing."""
    rope = read_rope(fields, head_dim=heads.dim, default_part=rotary_part)
    return ModelSpec(
        architecture=architecture,
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_q_heads=heads.num_q,
        num_kv_heads=heads.num_kv,
        head_dim=heads.dim,
        vocab_size=fields.integer("vocab_size"),
        max_position=longest_length(fields, rope),
        norm_eps=fields.number("layer_norm_eps", 1e-5),
        layers=(LayerSpec(None, rope),) * fields.layer_count(),
        attention_scale=heads.dim**-0.5,
        tied_embeddings=fields.flag("tie_word_embeddings", default=False),
        activation=fields.choice("hidden_act", GELUS, activation),
        norm=NormKind.LAYER,
        parallel=parallel,
        gated_mlp=False,
        mlp_bias=True,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        head_bias=head_bias,
    )
