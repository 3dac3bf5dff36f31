"""Mixtures of experts: Mixtral, OLMoE, and Qwen 2, Qwen 3 and Granite with experts."""

from __future__ import annotations

from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import GGUFForm, interleaved_heads

MIXTRAL = {"num_key_value_heads": 2, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": None}
MIXTRAL_KEYS = {"expert_count": 5, "expert_used_count": 2}
QWEN3 = {
    "num_key_value_heads": 2,
    "head_dim": 24,
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
}
GRANITE = {
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.6,
    "logits_scaling": 1.5,
}
GRANITE_KEYS = {"embedding_scale": 6.0, "attention.scale": 0.2, "residual_scale": 0.6, "logit_scale": 1.5}
OLMOE = {"num_key_value_heads": 2, "num_experts": 6, "num_experts_per_tok": 3}
DENSE_AND_SPARSE = FamilyCase(
    "qwen3 moe with dense layers",
    "qwen3_moe",
    QWEN3 | {"norm_topk_prob": False, "num_hidden_layers": 5, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
)
CASES = (
    FamilyCase("mixtral", "mixtral", MIXTRAL, (GGUFForm("llama", MIXTRAL_KEYS, interleaved_heads),)),
    FamilyCase("mixtral with a window", "mixtral", MIXTRAL | {"sliding_window": 24, "num_experts_per_tok": 1}),
    FamilyCase(
        "qwen3 moe normalised",
        "qwen3_moe",
        QWEN3 | {"norm_topk_prob": True},
        (GGUFForm("qwen3moe", {"expert_count": 7, "expert_used_count": 3, "expert_feed_forward_length": 40}),),
    ),
    DENSE_AND_SPARSE,
    FamilyCase("olmoe", "olmoe", OLMOE, (GGUFForm("olmoe", {"expert_count": 6, "expert_used_count": 3}),)),
    FamilyCase("olmoe normalised", "olmoe", OLMOE | {"norm_topk_prob": True, "num_key_value_heads": 4}),
    FamilyCase(
        "qwen2 moe with a shared expert",
        "qwen2_moe",
        QWEN3 | {"head_dim": None, "shared_expert_intermediate_size": 56, "mlp_only_layers": [0]},
    ),
    FamilyCase(
        "granite moe",
        "granitemoe",
        MIXTRAL | GRANITE,
        (GGUFForm("granitemoe", MIXTRAL_KEYS | GRANITE_KEYS, interleaved_heads),),
    ),
)
