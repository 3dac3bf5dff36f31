"""MXFP4 becomes codes and scales that are exactly its values, in both orders in which files store columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.torch import save_file

from kernels.mxfp4 import codes_in_turn, stored_codes
from models.codes.code_reader import CodeReader
from models.codes.codes_spec import CodesForm, CodesMethod, CodesSpec
from models.codes.mxfp4 import single_experts
from models.errors import CheckpointError
from models.gguf_weights import dequantized
from models.safetensors_file import SafetensorsFile

SPEC = CodesSpec(CodesMethod.MXFP4, CodesForm.MXFP4)


def test_a_byte_is_two_columns_the_lower_half_first() -> None:
    blocks = torch.zeros(1, 1, 16, dtype=torch.uint8)
    blocks[0, 0, :3] = torch.tensor([0x2B, 0xF7, 0x81])
    assert codes_in_turn(blocks)[0, :7].tolist() == [-3, 2, 12, -12, 1, 0, 0]
    values = CodeReader(SPEC).read("w", {"blocks": blocks, "scales": torch.tensor([[129]], dtype=torch.uint8)}).values()
    assert values[0, :7].tolist() == [-6.0, 4.0, 24.0, -24.0, 2.0, 0.0, 0.0]  # -1.5, 1, 6, .. times 2 ** (129 - 127)


def test_blocks_of_gguf_files_are_what_the_gguf_package_makes_of_them() -> None:
    rows = np.random.default_rng(7).integers(0, 256, (48, 3 * 17), dtype=np.uint8)
    rows.reshape(48, 3, 17)[:, :, 0] = np.arange(48 * 3).reshape(48, 3) + 60
    expected = torch.from_numpy(dequantize(rows, GGMLQuantizationType.MXFP4))
    codes, scales = stored_codes(torch.from_numpy(rows))
    assert torch.equal((codes.float().view(48, 3, 32) * scales[..., None]).flatten(1), expected)
    assert torch.equal(dequantized(rows, GGMLQuantizationType.MXFP4), expected)


def test_stacks_are_cut_into_experts_over_the_files_own_bytes(tmp_path: Path) -> None:
    blocks = torch.randint(0, 256, (3, 4, 2, 16), dtype=torch.uint8)
    scales = torch.randint(100, 140, (3, 4, 2), dtype=torch.uint8)
    save_file({"m.experts.up_blocks": blocks, "m.experts.up_scales": scales, "m.norm": scales.clone()}, tmp_path / "m")
    cut = {tensor.name: tensor for tensor in single_experts(SafetensorsFile(tmp_path / "m").tensors.values())}
    assert set(cut) == {"m.norm"} | {f"m.experts.{e}.up.{part}" for e in range(3) for part in ("blocks", "scales")}
    for expert in range(3):
        assert cut[f"m.experts.{expert}.up.blocks"].data.tolist() == blocks[expert].flatten().tolist()
        assert cut[f"m.experts.{expert}.up.scales"].shape == (4, 2)


def test_scales_that_do_not_fit_are_named() -> None:
    parts = {"blocks": torch.zeros(4, 2, 16, dtype=torch.uint8), "scales": torch.zeros(4, 3, dtype=torch.uint8)}
    with pytest.raises(CheckpointError, match=r"'w' do not fit together: blocks \(4, 2, 16\), scales \(4, 3\)"):
        CodeReader(SPEC).read("w", parts)
    with pytest.raises(CheckpointError, match="'w' lacks its tensor 'scales'"):
        CodeReader(SPEC).read("w", {"blocks": parts["blocks"]})
