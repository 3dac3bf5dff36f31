"""Rules that stretch rotary embedding change what is computed, from the position on where they set in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.backends import choose_backend
from models.checkpoint import resolve_checkpoint
from models.loader import load_model
from models.rotary import dynamic_frequencies, rotary_frequencies
from models.spec import LayerSpec, RopeSpec
from tests.models.families.cases.rope_rules import CASES
from tests.models.families.family_case import Expected, FamilyCase

CPU = torch.device("cpu")


@pytest.mark.usefixtures("single_thread")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_rule_is_one_that_these_prompts_tell_from_none(
    case: FamilyCase, checkpoint_of: Any, paged_logits: Any
) -> None:
    directory = checkpoint_of(case)
    checkpoint = resolve_checkpoint(str(directory))
    spec = checkpoint.read_spec()
    rope = spec.layers[0].rope
    assert rope is not None
    plain = replace(spec, layers=(LayerSpec(None, RopeSpec(rope.theta)),) * spec.num_layers)
    model = load_model(checkpoint, plain, device=CPU, dtype=torch.float32, backend=choose_backend(CPU)[0])
    prompt = case.prompts[-1]
    [ours] = paged_logits(model, [prompt], [[len(prompt) - 1]], chunk=90, dtype=torch.float32)
    assert (ours[0] - torch.from_numpy(Expected.read(directory).prompt[-1][-1])).abs().max() > 0.02


def test_a_server_of_short_contexts_has_short_factors_at_every_position_and_any_other_long_ones() -> None:
    rope = RopeSpec(
        100.0,
        "longrope",
        {"original_max_position_embeddings": 8},
        frequency_factors=(1.0, 2.0),
        long_factors=(4.0, 8.0),
        attention_factor=1.5,
    )
    assert rotary_frequencies(rope.for_length(8), 4).tolist() == pytest.approx([1.0, 0.1 / 2.0])
    assert rotary_frequencies(rope.for_length(9), 4).tolist() == pytest.approx([0.25, 0.1 / 8.0])
    assert rotary_frequencies(rope, 4).tolist() == pytest.approx([0.25, 0.1 / 8.0])


def test_the_dynamic_base_grows_behind_the_last_position_of_the_trained_context() -> None:
    rope = RopeSpec(100.0, "dynamic", {"factor": 3.0, "max_position_embeddings": 8})
    frequencies = dynamic_frequencies(rope, 4, torch.tensor([[0], [7], [8], [15]]))
    assert frequencies[:, 0].tolist() == [1.0] * 4
    bases = [100.0, 100.0, 100.0 * (3 * 9 / 8 - 2) ** 2, 100.0 * (3 * 16 / 8 - 2) ** 2]
    assert frequencies[:, 1].tolist() == pytest.approx([base**-0.5 for base in bases])
