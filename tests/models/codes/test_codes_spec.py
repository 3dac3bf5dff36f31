"""Published quantisation configs become the codes they mean, or a sentence that names what is not served."""

from __future__ import annotations

from typing import Any

import pytest

from models.codes.codes_spec import CodesForm, CodesMethod, CodesSpec, read_codes
from models.errors import CheckpointError
from models.fields import Fields

W4A16: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "input_activations": None,
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {
                "actorder": "weight",
                "dynamic": False,
                "group_size": 128,
                "num_bits": 4,
                "observer": "minmax",
                "strategy": "group",
                "symmetric": True,
                "type": "int",
            },
        }
    },
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "quantization_status": "compressed",
}
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True}
AWQ: dict[str, Any] = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 128,
    "version": "gemm",
    "zero_point": True,
    "modules_to_not_convert": None,
}
FP8: dict[str, Any] = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
}


def weights(**changes: Any) -> dict[str, Any]:
    group = W4A16["config_groups"]["group_0"]
    return {"config_groups": {"group_0": group | {"weights": group["weights"] | changes}}}


@pytest.mark.parametrize(
    ("config", "codes"),
    [
        (GPTQ, CodesSpec(CodesMethod.GPTQ, CodesForm.BITS4, zero_offset=1, has_index=True)),
        (GPTQ | {"desc_act": False}, CodesSpec(CodesMethod.GPTQ, CodesForm.BITS4, zero_offset=1)),
        (GPTQ | {"checkpoint_format": "gptq_v2"}, CodesSpec(CodesMethod.GPTQ, CodesForm.BITS4, has_index=True)),
        (GPTQ | {"bits": 8}, CodesSpec(CodesMethod.GPTQ, CodesForm.INT8, zero_offset=1, has_index=True)),
        (AWQ, CodesSpec(CodesMethod.AWQ, CodesForm.BITS4)),
        (FP8, CodesSpec(CodesMethod.FP8, CodesForm.FP8, is_packed=False)),
        (W4A16, CodesSpec(CodesMethod.COMPRESSED_TENSORS, CodesForm.BITS4)),
        (
            W4A16 | weights(symmetric=False, actorder="group"),
            CodesSpec(CodesMethod.COMPRESSED_TENSORS, CodesForm.BITS4, has_index=True, has_zeros=True),
        ),
        (
            W4A16 | {"format": "int-quantized"} | weights(num_bits=8, strategy="channel"),
            CodesSpec(CodesMethod.COMPRESSED_TENSORS, CodesForm.INT8, is_packed=False),
        ),
        (
            W4A16 | {"format": "float-quantized"} | weights(num_bits=8, type="float", strategy="tensor"),
            CodesSpec(CodesMethod.COMPRESSED_TENSORS, CodesForm.FP8, is_packed=False),
        ),
    ],
)
def test_published_configs_say_what_their_codes_are(config: dict[str, Any], codes: CodesSpec) -> None:
    assert read_codes(Fields(config, "config.json")) == codes


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"bits": 4}, "the key 'quant_method' is missing"),
        ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes', which is not supported"),
        (GPTQ | {"bits": 3}, "bits is 3, and GPTQ weights of 4 and 8 bits are supported"),
        (GPTQ | {"bits": 8, "sym": False}, "sym is False"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin', which is not supported"),
        (AWQ | {"version": "gemv"}, "version is 'gemv'"),
        (AWQ | {"bits": 8}, "bits is 8, and AWQ weights of 4 bits are supported"),
        (FP8 | {"fmt": "e5m2"}, "fmt is 'e5m2'"),
        (W4A16 | {"format": "marlin-24"}, "format is 'marlin-24'"),
        (W4A16 | weights(num_bits=4, type="float"), "config_groups has weights of 4 bits of the type 'float'"),
        (W4A16 | {"config_groups": {}}, "config_groups has 0 kinds of weights, and one is supported"),
        (
            W4A16
            | {"config_groups": {**W4A16["config_groups"], **{"b": weights(num_bits=8)["config_groups"]["group_0"]}}},
            "config_groups has 2 kinds of weights",
        ),
    ],
)
def test_what_is_not_served_is_named(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_codes(Fields(config, "config.json"))
    assert str(caught.value).startswith(f"config.json: {problem}")
