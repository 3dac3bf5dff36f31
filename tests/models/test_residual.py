"""Residual: a branch and the norm after it are one call of the backend, and hidden states are their plain sum."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels import composed
from kernels.attention import AttentionMetadata, KVPages, PagedLayer
from kernels.cpu.backend import TorchBackend
from models.checkpoint import resolve_checkpoint
from models.loader import load_model
from models.norms import RMSNorm
from models.residual import Residual

CPU = torch.device("cpu")


class CountingBackend(TorchBackend):
    """Writes down which steps between products it computed."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def normed(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        self.calls.append("normed")
        return super().normed(x, weight, eps)

    def normed_sum(
        self, x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.append("normed_sum")
        return super().normed_sum(x, branch, weight, eps)

    def add_normed(self, x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        self.calls.append("add_normed")
        return super().add_normed(x, branch, weight, eps)


def calls_of_a_step(directory: Path) -> tuple[list[str], int]:
    """The steps between products of a step of three tokens, and the number of layers."""
    backend = CountingBackend()
    checkpoint = resolve_checkpoint(str(directory))
    spec = checkpoint.read_spec()
    model = load_model(checkpoint, spec, device=CPU, dtype=torch.float32, backend=backend)
    metadata = AttentionMetadata(
        query_start_loc=torch.tensor([0, 3], dtype=torch.int32),
        seq_lens=torch.tensor([3], dtype=torch.int32),
        block_table=torch.tensor([[1]], dtype=torch.int32),
        slot_mapping=torch.tensor([16, 17, 18]),
        max_query_len=3,
        max_seq_len=3,
    )
    pages = torch.zeros(2, len(spec.layers), 2, spec.num_kv_heads, 16, spec.head_dim)
    layers = [PagedLayer(KVPages(pages[0, i], pages[1, i]), metadata) for i in range(len(spec.layers))]
    with torch.inference_mode():
        model.forward(torch.tensor([5, 6, 7]), torch.arange(3), layers, torch.tensor([2]))
    return backend.calls, len(spec.layers)


def test_each_sum_of_a_llama_and_the_norm_after_it_are_one_call(tiny_llama_dir: Path) -> None:
    """Across the border of layers too, and before the last norm; only the first has no sum before it."""
    calls, num_layers = calls_of_a_step(tiny_llama_dir)
    assert calls == ["normed"] + ["normed_sum"] * 2 * num_layers


def test_a_gemma_norms_branches_before_it_adds_them(tiny_gemma3_dir: Path) -> None:
    calls, num_layers = calls_of_a_step(tiny_gemma3_dir)
    assert calls == ["normed", "add_normed"] * 2 * num_layers + ["normed"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hidden_states_are_the_rounded_sum_however_they_are_read(dtype: torch.dtype) -> None:
    x, first, second = torch.randn(3, 4, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    norm = RMSNorm(64, 1e-5, TorchBackend(), plus_one=False, device=CPU)
    torch.nn.init.normal_(norm.weight, generator=torch.Generator().manual_seed(1))
    total = x + first + second
    residual = Residual(x, TorchBackend())
    assert torch.equal(residual.normed(norm), composed.normed(x, norm.weight, 1e-5))
    residual.add(first)
    residual.add(second)  # nobody read the sum before
    assert torch.equal(residual.rows(torch.tensor([3, 1])).normed(norm), norm(total)[[3, 1]])
    assert torch.equal(residual.normed(norm), norm(total))
    assert torch.equal(residual.normed(norm), norm(total))
    assert torch.equal(residual.total(), total)
    residual.add_normed(first, norm)
    assert torch.equal(residual.total(), total + norm(first))
