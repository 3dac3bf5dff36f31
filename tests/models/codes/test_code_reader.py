"""Coded weights of published files read as the numbers that were packed into them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from models.codes.code_reader import CodeReader, is_ignored
from models.codes.codes_spec import CodesForm, CodesMethod, CodesSpec
from models.errors import CheckpointError
from tests.models.codes import code_writer as write

GPTQ = CodesSpec(CodesMethod.GPTQ, CodesForm.BITS4, zero_offset=1)
GPTQ8 = CodesSpec(CodesMethod.GPTQ, CodesForm.INT8, zero_offset=1)
CT4 = CodesSpec(CodesMethod.COMPRESSED_TENSORS, CodesForm.BITS4)
FP8 = CodesSpec(CodesMethod.FP8, CodesForm.FP8, is_packed=False)
ONE = torch.ones(1)


def without(ending: str, parts: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: values for name, values in parts.items() if name != ending}


def read(codes: CodesSpec, parts: dict[str, torch.Tensor]) -> torch.Tensor:
    return CodeReader(codes).read("q_proj", parts).values()


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("offset", [0, 1])
def test_gptq_of_4_bits_reads_its_zeros_as_its_version_stores_them(group: int, offset: int) -> None:
    drawn = write.draw(24, 128, group)
    spec = CodesSpec(CodesMethod.GPTQ, CodesForm.BITS4, zero_offset=offset)
    assert torch.equal(read(spec, write.gptq(drawn, stored_zeros=-offset)), drawn.values)


def test_gptq_without_an_index_has_its_groups_side_by_side() -> None:
    drawn = write.draw(24, 128, 32)
    parts = write.gptq(drawn)
    del parts["g_idx"]
    assert torch.equal(read(GPTQ, parts), drawn.values)


def test_a_zero_of_sixteen_is_one_above_the_largest_code() -> None:
    drawn = write.draw(24, 64, 32, zero=16)
    assert torch.equal(read(GPTQ, write.gptq(drawn)), drawn.values)


def test_gptq_in_the_order_of_activations_gives_each_column_its_own_group() -> None:
    drawn = write.draw(24, 128, 32, shuffled=True)
    weight = CodeReader(GPTQ).read("q_proj", write.gptq(drawn))
    assert weight.order is not None
    assert torch.equal(weight.values(), drawn.values)
    assert weight.zeros is not None
    again = (weight.codes.float().view(24, 4, 32) - weight.zeros[..., None]) * weight.scales[..., None]
    assert torch.equal(again.view(24, 128), drawn.values[:, weight.order])  # groups side by side, as kernels take them


def test_gptq_of_8_bits_becomes_signed_codes_without_zeros() -> None:
    drawn = write.draw(24, 64, 32, bits=8, zero=128)
    weight = CodeReader(CodesSpec(CodesMethod.GPTQ, CodesForm.INT8, zero_offset=1)).read("w", write.gptq(drawn, 8))
    assert (weight.codes.dtype, weight.zeros) == (torch.int8, None)
    assert torch.equal(weight.values(), drawn.values)


def test_awq_reads_its_words_in_their_own_order() -> None:
    drawn = write.draw(32, 128, 64)
    assert torch.equal(read(CodesSpec(CodesMethod.AWQ, CodesForm.BITS4), write.awq(drawn)), drawn.values)


@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_compressed_tensors_packs_along_rows_of_weights_and_columns_of_zeros(
    is_symmetric: bool, dtype: torch.dtype
) -> None:
    drawn = write.draw(24, 128, 64, zero=8 if is_symmetric else None, dtype=dtype)
    assert torch.equal(read(CT4, write.pack_quantized(drawn, is_symmetric=is_symmetric)), drawn.values)


@pytest.mark.parametrize("scale_shape", [(24, 1), (24,), (1,), ()])
def test_int8_weights_have_a_scale_for_each_row_or_one_for_all(scale_shape: tuple[int, ...]) -> None:
    codes = torch.randint(-128, 128, (24, 64), generator=torch.Generator().manual_seed(5)).to(torch.int8)
    scales = torch.rand(scale_shape, generator=torch.Generator().manual_seed(6)).bfloat16()
    spec = CodesSpec(CodesMethod.COMPRESSED_TENSORS, CodesForm.INT8, is_packed=False)
    wanted = codes.float() * (scales.float().view(-1, 1) if scales.numel() > 1 else scales.float())
    assert torch.equal(read(spec, {"weight": codes, "weight_scale": scales}), wanted)


def test_fp8_weights_have_a_scale_for_each_block_of_128() -> None:
    codes = torch.randn(200, 256, generator=torch.Generator().manual_seed(5)).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 2, generator=torch.Generator().manual_seed(6))
    wanted = codes.float()
    for row in range(200):
        for block in range(2):
            wanted[row, 128 * block : 128 * (block + 1)] *= scales[row // 128, block]
    spec = CodesSpec(CodesMethod.FP8, CodesForm.FP8, is_packed=False)
    assert torch.equal(read(spec, {"weight": codes, "weight_scale_inv": scales}), wanted)


@pytest.mark.parametrize(
    ("spec", "parts", "problem"),
    [
        (GPTQ, {"qweight": torch.zeros(8, 24, dtype=torch.int32)}, "lacks its tensor 'scales'"),
        (GPTQ, write.gptq(write.draw(24, 64, 32)) | {"scales": torch.ones(3, 24)}, "do not fit together: qweight"),
        (GPTQ, write.gptq(write.draw(24, 64, 32)) | {"g_idx": torch.zeros(64)}, "g_idx' is stored as float32"),
        (GPTQ, write.gptq(write.draw(24, 64, 32)) | {"g_idx": torch.zeros(64).int()}, "do not fit together"),
        (GPTQ, write.gptq(write.draw(24, 64, 32)) | {"g_idx": torch.arange(64).int() // 32 - 1}, "do not fit"),
        (GPTQ, write.gptq(write.draw(24, 64, 32)) | {"g_idx": torch.full((64,), 2**31 - 1).int()}, "do not fit"),
        (GPTQ, write.gptq(write.draw(24, 64, 32)) | {"scales": torch.ones(0, 24)}, "do not fit together"),
        (GPTQ, write.gptq(write.draw(24, 64, 32)) | {"scales": torch.full((2, 24), torch.nan)}, "no finite numbers"),
        (GPTQ, write.gptq(write.draw(24, 64, 32)) | {"qzeros": torch.zeros(2, 3).char()}, "qzeros' is stored as int8"),
        (
            replace(GPTQ, has_index=True),
            without("g_idx", write.gptq(write.draw(24, 64, 32))),
            "lacks its tensor 'g_idx'",
        ),
        (GPTQ8, write.gptq(write.draw(24, 64, 32, bits=8, zero=128), 8) | {"qzeros": torch.zeros(0, 6).int()}, "fit"),
        (
            CT4,
            write.pack_quantized(write.draw(24, 64, 32, zero=8), is_symmetric=True)
            | {"weight_shape": torch.tensor([24, 65])},
            "fit",
        ),
        (
            CT4,
            write.pack_quantized(write.draw(24, 64, 32, zero=8), is_symmetric=True)
            | {"weight_shape": torch.tensor([23, 64])},
            "fit",
        ),
        (
            CT4,
            write.pack_quantized(write.draw(24, 64, 32, zero=8), is_symmetric=True)
            | {"weight_scale": torch.ones(2, 24)},
            "fit",
        ),
        (
            replace(CT4, has_zeros=True),
            write.pack_quantized(write.draw(24, 64, 32, zero=8), is_symmetric=True),
            "lacks its tensor 'weight_zero_point'",
        ),
        (FP8, {"weight": torch.full((4, 32), torch.nan).to(torch.float8_e4m3fn), "weight_scale": ONE}, "no finite"),
        (FP8, {"weight": torch.zeros(4, 32).char(), "weight_scale": ONE}, "weight' is stored as int8"),
        (
            CT4,
            write.pack_quantized(write.draw(24, 64, 32), is_symmetric=False) | {"weight_scale": torch.ones(7)},
            "fit",
        ),
    ],
)
def test_tensors_that_do_not_belong_together_are_named(
    spec: CodesSpec, parts: dict[str, torch.Tensor], problem: str
) -> None:
    with pytest.raises(CheckpointError, match=problem) as caught:
        CodeReader(spec).read("model.layers.0.q_proj", parts)
    assert "'model.layers.0.q_proj" in str(caught.value)


def test_scales_of_pages_are_ignored_and_no_others() -> None:
    assert is_ignored("model.layers.0.self_attn.k_scale")
    assert not is_ignored("model.layers.0.self_attn.k_proj.weight_scale")
