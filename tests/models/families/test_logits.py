"""Every family gives what transformers' class of that name gives, from a Hugging Face directory and from a GGUF file.

The cases are in ``cases/``, a table for each family.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.families.cases import (
    falcon,
    gemma,
    gpt2,
    gpt_neox,
    gpt_oss,
    granite,
    llama,
    mistral,
    mixtures,
    olmo,
    phi,
    phi3,
    qwen2,
    qwen3,
    rope_rules,
    smollm3,
    stablelm,
)
from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import GGUFForm, write_gguf

TABLES = (
    falcon, gemma, gpt2, gpt_neox, gpt_oss, granite, llama, mistral, mixtures, olmo, phi, phi3, qwen2, qwen3,
    rope_rules, smollm3, stablelm,
)  # fmt: skip
CASES = [case for table in TABLES for case in table.CASES]
pytestmark = pytest.mark.usefixtures("single_thread")


@pytest.mark.parametrize("chunk", [7, 90])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_and_greedy_tokens_are_those_of_transformers(
    case: FamilyCase, chunk: int, checkpoint_of: Any, agrees: Any
) -> None:
    agrees(case, checkpoint_of(case), chunk=chunk)


@pytest.mark.parametrize(
    ("case", "form"), [pytest.param(case, form, id=case.name) for case in CASES for form in case.gguf]
)
def test_the_same_model_in_a_gguf_file_computes_the_same(
    case: FamilyCase, form: GGUFForm, checkpoint_of: Any, agrees: Any, tmp_path: Path
) -> None:
    agrees(case, write_gguf(checkpoint_of(case), tmp_path / "model.gguf", form), chunk=90)


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
