"""Qwen 3 gives what transformers' class of that name gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.families.family_case import Expected, FamilyCase
from tests.models.families.gguf_writer import write_gguf

CASES = {
    case.name: case
    for case in [
        FamilyCase("qwen3", "qwen3", {"num_key_value_heads": 2, "head_dim": 24, "tie_word_embeddings": True}),
        FamilyCase(
            "qwen3 untied with biases", "qwen3", {"num_key_value_heads": 1, "head_dim": 32, "attention_bias": True}
        ),
    ]
}


@pytest.fixture(scope="module")
def directories(make_checkpoints: Any) -> dict[str, Path]:
    checkpoints: dict[str, Path] = make_checkpoints(list(CASES.values()))
    return checkpoints


@pytest.mark.usefixtures("single_thread")
@pytest.mark.parametrize("chunk", [7, 90])
@pytest.mark.parametrize("name", CASES)
def test_logits_and_greedy_tokens_are_those_of_transformers(
    name: str, chunk: int, directories: dict[str, Path], agrees: Any
) -> None:
    agrees(directories[name], CASES[name], Expected.read(directories[name]), chunk=chunk)


@pytest.mark.usefixtures("single_thread")
@pytest.mark.parametrize("name", CASES)
def test_the_same_model_in_a_gguf_file_computes_the_same(
    name: str, directories: dict[str, Path], agrees: Any, tmp_path: Path
) -> None:
    path = write_gguf(directories[name], tmp_path / "model.gguf", "qwen3")
    agrees(path, CASES[name], Expected.read(directories[name]), chunk=90)
