"""Files of older transformers hold masks, and some name tensors without their first part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.models.families.cases.gpt2 import GPT2
from tests.models.families.cases.gpt_neox import GPT_NEOX
from tests.models.families.family_case import FamilyCase


@pytest.mark.usefixtures("single_thread")
@pytest.mark.parametrize(
    ("case", "root", "masks"),
    [
        (GPT2, "transformer.", ("h.1.attn.bias", "h.1.attn.masked_bias")),
        (
            GPT_NEOX,
            "",
            (
                "gpt_neox.layers.1.attention.bias",
                "gpt_neox.layers.1.attention.masked_bias",
                "gpt_neox.layers.1.attention.rotary_emb.inv_freq",
            ),
        ),
    ],
    ids=["gpt2", "gpt neox"],
)
def test_older_files_hold_masks_that_are_computed_and_some_leave_out_the_first_part_of_names(
    case: FamilyCase, root: str, masks: tuple[str, ...], checkpoint_of: Any, agrees: Any, tmp_path: Path
) -> None:
    directory = checkpoint_of(case)
    weights = load_file(directory / "model.safetensors")
    renamed = {key.removeprefix(root): values for key, values in weights.items()}
    assert root == "" or not weights.keys() & renamed.keys()
    computed = {"bias": np.ones((1, 1, 4, 4), bool), "masked_bias": np.array(-1e9), "inv_freq": np.ones(4)}
    held = {mask: computed[mask.rpartition(".")[2]] for mask in masks}
    save_file(renamed | held, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((directory / "config.json").read_text())
    agrees(case, tmp_path, chunk=90)
