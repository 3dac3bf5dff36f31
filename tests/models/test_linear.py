"""A packed matrix product is F.linear's, only faster; where it cannot be packed, it is F.linear."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch
import torch.nn.functional as F

from models.linear import Linear
from models.matrix_product import MatrixProduct
from models.weight_place import WeightPlace

CPU = torch.device("cpu")


def drawn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16], ids=str)
def packable(request: pytest.FixtureRequest) -> torch.dtype:
    """Every dtype that this build of torch says it can pack on this CPU."""
    dtype: torch.dtype = request.param
    supported = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if supported and dtype is torch.bfloat16:
        supported = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if supported and dtype is torch.float16:
        supported = torch.ops.mkldnn._is_mkldnn_fp16_supported()
    if not supported:
        pytest.skip(f"this build of torch, or this CPU, has no packed product in {dtype}")
    return dtype


@pytest.mark.parametrize("num_rows", [0, 1, 2, 9, 130])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_packed_product_is_that_of_the_plain_weight(packable: torch.dtype, has_bias: bool, num_rows: int) -> None:
    dtype = packable
    weight, bias = drawn(200, 96, dtype=dtype), drawn(200, dtype=dtype) if has_bias else None
    product = MatrixProduct(WeightPlace.of(weight), bias)
    product.pack()
    assert product.is_packed
    x = drawn(num_rows, 2 * 96, dtype=dtype)[:, 96:]  # rows with a gap between them, as slices of a fused product have
    ours, theirs = product(x), F.linear(x, weight, bias)
    assert (ours.dtype, ours.shape) == (dtype, (num_rows, 200))
    rounding = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    torch.testing.assert_close(ours, theirs, rtol=rounding, atol=40 * rounding)  # sums of 96 products reach about 40


def test_packing_lets_go_of_the_plain_weight_and_leaves_nothing_to_fill(packable: torch.dtype) -> None:
    linear = Linear(64, {"q": 32, "k": 16}, bias=True, dtype=packable, device=CPU)
    places = dict(linear.parameters(""))
    assert list(places) == ["q.weight", "q.bias", "k.weight", "k.bias"]
    for place in places.values():
        place.view.fill_(2.0)
    [pack] = {place.when_filled for place in places.values()}
    assert pack is not None
    plain = weakref.ref(places["q.weight"].view.untyped_storage())
    places.clear()
    del place
    pack()
    assert plain() is None
    assert not dict(linear.parameters(""))
    ones = torch.ones(3, 64, dtype=packable)
    assert torch.equal(linear(ones), torch.full((3, 48), 130.0, dtype=packable))  # 64 * 2 + 2


def test_with_a_product_of_the_backends_own_a_weight_stays_plain_for_it() -> None:
    def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        assert bias is not None
        return 2 * F.linear(x, weight, bias)

    linear = Linear(64, {"q": 32, "k": 16}, bias=True, dtype=torch.float32, device=CPU, dense_product=product)
    for place in dict(linear.parameters("")).values():
        place.view.fill_(2.0)
        assert place.when_filled is not None
        place.when_filled()
    assert torch.equal(linear(torch.ones(3, 64)), torch.full((3, 48), 260.0))


def refuse(*_: object) -> NoReturn:
    raise RuntimeError("not on this CPU")


@pytest.mark.parametrize(
    "operations",
    [
        SimpleNamespace(),
        SimpleNamespace(_reorder_linear_weight=refuse),
        SimpleNamespace(_reorder_linear_weight=lambda weight: weight, _linear_pointwise=refuse),
    ],
    ids=["missing", "refuses to pack", "refuses to multiply"],
)
def test_without_the_operation_the_plain_weight_goes_on_serving(
    operations: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, x = drawn(200, 96, dtype=torch.float32), drawn(9, 96, dtype=torch.float32)
    product = MatrixProduct(WeightPlace.of(weight))
    monkeypatch.setattr(torch.ops, "mkldnn", operations)
    product.pack()
    assert not product.is_packed
    assert product.place is not None
    assert product.place.tensor is weight
    assert torch.equal(product(x), F.linear(x, weight))
