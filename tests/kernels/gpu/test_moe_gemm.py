from __future__ import annotations

import pytest
import torch

from kernels import reference_layers
from kernels.gpu.moe_gemm import GemmTile, fixed_grouped_gemm, grouped_gemm, grouped_gemm_tile
from kernels.grouping import Grouping

SMALL = GemmTile(rows=16, columns=32, depth=32, num_warps=4, num_stages=2)
# Sums of about 70 products of numbers near 1, rounded to values below 64.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2.0**-6, torch.bfloat16: 2.0**-3}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def offsets_of(counts: list[int]) -> torch.Tensor:
    return torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "counts", [[5], [0, 17, 16, 0, 1], [15, 0, 33], [0, 0, 3, 0]], ids=["one expert", "borders", "gap", "few"]
)
def test_every_row_meets_its_expert_and_no_other(counts: list[int], dtype: torch.dtype, device: torch.device) -> None:
    x, weight = normal(sum(counts), 72).to(dtype), normal(len(counts), 40, 72, seed=1).to(dtype)
    weight[[expert for expert, count in enumerate(counts) if count == 0]] = float("nan")
    offsets = offsets_of(counts)
    output = grouped_gemm(x.to(device), weight.to(device), offsets.to(device), tile=SMALL)
    expected = reference_layers.grouped_gemm(x, weight, offsets)
    torch.testing.assert_close(output.cpu().double(), expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("num_rows", [3, 70, 140])
def test_the_tiles_a_gpu_gets_equal_the_reference(num_rows: int, device: torch.device) -> None:
    x, weight = normal(num_rows, 100).half(), normal(2, 130, 100, seed=1).half()
    offsets = offsets_of([num_rows - 1, 1])
    output = grouped_gemm(x.to(device), weight.to(device), offsets.to(device))
    expected = reference_layers.grouped_gemm(x, weight, offsets)
    torch.testing.assert_close(output.cpu().double(), expected, rtol=0, atol=2.0**-6)


def test_rows_are_gathered_and_combined_in_the_order_of_the_router(device: torch.device) -> None:
    """Two experts a token; what a dense loop over tokens gives."""
    x, weight = normal(9, 48), normal(6, 32, 48, seed=1)
    expert_ids = normal(9, 6, seed=2).topk(2).indices
    router_weights = normal(9, 2, seed=3).softmax(-1)
    grouping = Grouping.by_expert(expert_ids.to(device), 6)
    rows = grouped_gemm(x.to(device), weight.to(device), grouping.offsets, grouping.token_ids, tile=SMALL)
    output = grouping.combine(rows, router_weights.to(device))
    products = torch.einsum("tkoi,ti->tko", weight[expert_ids].double(), x.double())
    expected = (products * router_weights.double()[..., None]).sum(1)
    torch.testing.assert_close(output.cpu().double(), expected, rtol=0, atol=2e-5)


def test_grouping_sorts_by_expert_and_keeps_the_order_of_tokens(device: torch.device) -> None:
    grouping = Grouping.by_expert(torch.tensor([[2, 0], [3, 2], [0, 3]], device=device), 5)
    assert grouping.token_ids.tolist() == [0, 2, 0, 1, 1, 2]
    assert grouping.pairs.tolist() == [1, 4, 0, 3, 2, 5]
    assert grouping.offsets.tolist() == [0, 2, 2, 4, 6, 6]


def test_what_lies_beside_rows_and_weights_is_not_read(device: torch.device) -> None:
    x = torch.full((8, 64), float("nan"), device=device)
    weight = torch.full((2, 48, 64), float("nan"), device=device)
    x[:5, :40], weight[:, :32, :40] = 1.0, 1.0
    output = grouped_gemm(x[:5, :40], weight[:, :32, :40], offsets_of([2, 3]).to(device), tile=SMALL)
    assert (output == 40.0).all()


def test_a_row_has_the_same_bits_in_every_batch_of_the_same_tile(device: torch.device) -> None:
    x, weight = normal(21, 64).to(device), normal(1, 32, 64, seed=1).to(device)
    together = grouped_gemm(x, weight, offsets_of([21]).to(device), tile=SMALL)
    alone = grouped_gemm(x[20:], weight, offsets_of([1]).to(device), tile=SMALL)
    assert torch.equal(together[20:], alone)


def test_rows_have_the_same_bits_in_batches_of_any_size_where_the_tile_is_fixed(device: torch.device) -> None:
    x, weight = normal(300, 64).half().to(device), normal(2, 32, 64, seed=1).half().to(device)
    together = fixed_grouped_gemm(x, weight, offsets_of([290, 10]).to(device))
    alone = fixed_grouped_gemm(x[:1], weight, offsets_of([1, 0]).to(device))
    assert torch.equal(together[:1], alone)
    assert torch.equal(together[-10:], fixed_grouped_gemm(x[-10:], weight, offsets_of([0, 10]).to(device)))


def test_an_empty_batch_is_an_empty_batch(device: torch.device) -> None:
    output = grouped_gemm(
        torch.empty(0, 64, device=device), torch.ones(2, 32, 64, device=device), offsets_of([0, 0]).to(device)
    )
    assert output.shape == (0, 32)


def test_experts_with_few_rows_get_flat_tiles() -> None:
    tiles = [grouped_gemm_tile(rows, 8, torch.bfloat16).rows for rows in (8, 128, 136, 512, 520)]
    assert tiles == [16, 16, 64, 64, 128]


def test_what_does_not_fit_is_refused(device: torch.device) -> None:
    x, weight = torch.ones(4, 64, device=device), torch.ones(2, 32, 64, device=device)
    with pytest.raises(ValueError, match="does not fit"):
        grouped_gemm(x[:, :32], weight, offsets_of([2, 2]).to(device))
    with pytest.raises(ValueError, match="must be int32 of 3"):
        grouped_gemm(x, weight, offsets_of([4]).to(device))
    with pytest.raises(ValueError, match="dense last dimension"):
        grouped_gemm(x, weight.transpose(1, 2).contiguous().transpose(1, 2), offsets_of([2, 2]).to(device))
