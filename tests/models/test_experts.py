"""A mixture of experts asks those it chose, adds what they say in one order, and is the same stacked or one by one."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kernels import reference_layers
from kernels.attention import AttentionBackend
from kernels.backends import choose_backend
from models.experts import Experts
from models.mlp import GatedMLP
from models.residual import Residual
from models.router import Router
from models.spec import ExpertsSpec, ModelSpec

CPU = torch.device("cpu")
HIDDEN, INNER, NUM_EXPERTS = 64, 96, 6
SPEC = ModelSpec(
    architecture="mixtral",
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    num_q_heads=1,
    num_kv_heads=1,
    head_dim=HIDDEN,
    vocab_size=10,
    max_position=10,
    norm_eps=1e-5,
    layers=(),
    attention_scale=1.0,
    tied_embeddings=True,
    activation="silu",
)
BACKEND, _ = choose_backend(CPU)


def experts_spec(*, per_token: int = 2, is_normalised: bool = True, has_bias: bool = False) -> ExpertsSpec:
    return ExpertsSpec(NUM_EXPERTS, per_token, INNER, is_normalised, has_bias)


def stacking_backend() -> Any:
    """The CPU's, with the reference's product of stacked experts."""

    def product(
        x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor, token_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        rows = x if token_ids is None else x[token_ids.long()]
        return reference_layers.grouped_gemm(rows, weight, offsets).to(x.dtype)

    return SimpleNamespace(expert_product=product, dense_product=None, gated=BACKEND.gated, min_rows=1)


def filled(experts: ExpertsSpec, backend: AttentionBackend) -> tuple[Experts, dict[str, torch.Tensor]]:
    """A block with drawn weights, and these."""
    block = Experts(SPEC, experts, backend, dtype=torch.float32, device=CPU)
    generator = torch.Generator().manual_seed(3)
    weights: dict[str, torch.Tensor] = {}
    fillers = set()
    for name, parameter in block.parameters(""):
        scale = 2.0 if name == "router.weight" else 1.0
        values = torch.randn(parameter.shape, generator=generator) * scale * parameter.shape[-1] ** -0.5
        weights[name] = values
        parameter.view.copy_(values)
        if parameter.when_filled is not None:
            fillers.add(parameter.when_filled)
    for pack in fillers:
        pack()
    return block, weights


def rows(count: int) -> torch.Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(count))


def dense(weights: dict[str, torch.Tensor], x: torch.Tensor, experts: ExpertsSpec) -> torch.Tensor:
    """Every token through all experts, in float64, by the definition."""
    w = {name: values.double() for name, values in weights.items()}
    probabilities = F.linear(x.double(), w["router.weight"], w.get("router.bias")).softmax(dim=-1)
    kept = (
        probabilities
        >= probabilities.sort(dim=-1, descending=True).values[:, experts.per_token - 1 : experts.per_token]
    )
    shares = probabilities * kept
    if experts.is_normalised:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    total = torch.zeros_like(x, dtype=torch.float64)
    for number in range(NUM_EXPERTS):
        gate, up, down = (
            lambda y, name=f"experts.{number}.{part}": F.linear(y, w[f"{name}.weight"], w.get(f"{name}.bias"))
            for part in ("gate_proj", "up_proj", "down_proj")
        )
        total += shares[:, number : number + 1] * down(F.silu(gate(x.double())) * up(x.double()))
    return total


@pytest.mark.parametrize("backend", [BACKEND, stacking_backend()], ids=["one by one", "stacked"])
@pytest.mark.parametrize(
    "experts",
    [
        experts_spec(),
        experts_spec(per_token=3, is_normalised=False),
        experts_spec(per_token=NUM_EXPERTS, has_bias=True),
        experts_spec(per_token=1, is_normalised=False, has_bias=True),
    ],
    ids=["two", "three as they are", "all", "one"],
)
def test_tokens_get_the_weighed_sum_of_their_experts(experts: ExpertsSpec, backend: AttentionBackend) -> None:
    block, weights = filled(experts, backend)
    x = rows(23)
    output = block.of_normed(Residual(x.clone(), BACKEND), None)
    torch.testing.assert_close(output.double(), dense(weights, x, experts), rtol=0, atol=1e-5)


def called(calls: list[int], number: int, mlp: GatedMLP, x: torch.Tensor) -> torch.Tensor:
    calls.append(number)
    return mlp(x)


def test_experts_that_no_token_goes_to_are_not_read() -> None:
    experts = experts_spec()
    block, _ = filled(experts, BACKEND)
    x = rows(3)
    chosen, _ = block._router(x)
    used = frozenset(chosen.flatten().tolist())
    assert 2 <= len(used) < NUM_EXPERTS
    counts = chosen.flatten().bincount().tolist()
    assert len({count for count in counts if count}) > 1, "the tokens should be spread unevenly"
    expected = block.of_normed(Residual(x, BACKEND), None)
    calls = []
    mlps = block._mlps._mlps
    block._mlps._mlps = [partial(called, calls, number, mlp) for number, mlp in enumerate(mlps)]
    assert torch.equal(block.of_normed(Residual(x, BACKEND), None), expected)
    assert calls == sorted(used)


def test_a_tokens_bits_do_not_depend_on_its_company_nor_on_its_place() -> None:
    """At sizes where the products of this build do not depend on it either."""
    block, _ = filled(experts_spec(per_token=3), BACKEND)
    x = rows(17)
    together = block.of_normed(Residual(x, BACKEND), None)
    for order in (torch.arange(16, -1, -1), torch.randperm(17, generator=torch.Generator().manual_seed(1))):
        assert torch.equal(block.of_normed(Residual(x[order], BACKEND), None), together[order])
    for row in range(17):
        assert torch.equal(block.of_normed(Residual(x[row : row + 1], BACKEND), None), together[row : row + 1])


def test_the_router_computes_in_float32_and_stays_so_where_weights_are_kept_otherwise() -> None:
    router = Router(HIDDEN, experts_spec(), BACKEND, device=CPU)
    [(name, parameter)] = router.parameters("")
    assert (name, parameter.view.dtype, parameter.keep) == ("router.weight", torch.float32, None)
    weight = torch.zeros(NUM_EXPERTS, HIDDEN)
    weight[4, 0], weight[2, 0] = 1.0 + 2.0**-12, 1.0  # which bfloat16 cannot tell apart
    parameter.view.copy_(weight)
    expert_ids, shares = router(torch.ones(1, HIDDEN, dtype=torch.bfloat16))
    assert expert_ids.tolist() == [[4, 2]]
    torch.testing.assert_close(shares, torch.tensor([[0.5 + 2.0**-14, 0.5 - 2.0**-14]]), rtol=0, atol=1e-7)


def test_all_experts_have_the_names_of_files_and_count_their_bytes() -> None:
    for backend in (BACKEND, stacking_backend()):
        block, weights = filled(experts_spec(has_bias=True), backend)
        assert block.nbytes >= sum(values.nbytes for values in weights.values() if values.dim() == 2)
        assert list(weights)[:4] == [
            "router.weight",
            "router.bias",
            "experts.0.gate_proj.weight",
            "experts.0.gate_proj.bias",
        ]
        assert len(weights) == 2 + NUM_EXPERTS * 6
