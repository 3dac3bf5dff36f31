"""Embeddings: rows of a table, times a scale."""

from __future__ import annotations

import pytest
import torch

from models.embedding import Embedding

GEMMA3_SCALE = 640**0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [1, 97])
def test_rows_are_scaled_as_torch_scales_them_and_the_table_stays_as_it_is(num_tokens: int, dtype: torch.dtype) -> None:
    embedding = Embedding(50, 640, GEMMA3_SCALE, dtype=dtype, device=torch.device("cpu"))
    table = torch.randn(50, 640, generator=torch.Generator().manual_seed(0)).to(dtype)
    embedding.place.tensor.copy_(table)
    token_ids = torch.arange(num_tokens) * 7 % 50
    scale = torch.tensor(GEMMA3_SCALE, dtype=dtype).item()
    for _ in range(2):
        assert torch.equal(embedding(token_ids), table[token_ids] * scale)


def test_a_scale_of_one_changes_nothing() -> None:
    embedding = Embedding(4, 8, 1.0, dtype=torch.float32, device=torch.device("cpu"))
    embedding.place.tensor.copy_(torch.randn(4, 8))
    assert torch.equal(embedding(torch.tensor([3, 0])), embedding.place.tensor[[3, 0]])
