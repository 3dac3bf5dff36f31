"""Experts: the MLPs of a mixture, of which each token goes to a few (Shazeer et al., 2017).

Knows no pages, no other layers and no architectures. Rows are sorted by expert once for a layer. Invariant: what
experts say of a token is weighed and added in float32 in one order, that of the experts' numbers or of the router's
choice, so that its bits depend on its own row of each product alone.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import torch

from kernels.attention import AttentionBackend
from kernels.grouping import Grouping
from kernels.products import ExpertProduct
from models.lora import Projections
from models.mlp import GatedMLP
from models.norms import Norm
from models.parameter import NamedParameters, Parameter
from models.residual import Residual
from models.router import Router
from models.shared_expert import SharedExpert
from models.spec import ExpertsSpec, ModelSpec
from models.weight_place import WeightPlace


class ExpertMLPs(Protocol):
    """All experts of a layer."""

    def __call__(self, x: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """What the experts that each row of ``x`` goes to make of it, weighed and added; like ``x``."""

    @property
    def nbytes(self) -> int: ...

    def parameters(self, prefix: str) -> NamedParameters: ...


class Experts:
    """A mixture of gated MLPs, and the router that chooses among them."""

    def __init__(
        self,
        spec: ModelSpec,
        experts: ExpertsSpec,
        backend: AttentionBackend,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._router = Router(spec.hidden_size, experts, backend, device=device)
        product = backend.expert_product
        self._mlps: ExpertMLPs = (
            SingleExperts(spec, experts, backend, dtype=dtype, device=device)
            if product is None
            else StackedExperts(spec, experts, backend, product, dtype=dtype, device=device)
        )

        self._shared = (
            None
            if experts.shared_size is None
            else SharedExpert(spec, experts.shared_size, backend, dtype=dtype, device=device)
        )

    def of_normed(self, residual: Residual, norm: Norm | None) -> torch.Tensor:
        """The block's output for the normed hidden states."""
        x = residual.total() if norm is None else residual.normed(norm)
        output = self._mlps(x, *self._router(x))
        return output if self._shared is None else output + self._shared(x)

    @property
    def nbytes(self) -> int:
        return self._router.nbytes + self._mlps.nbytes + (0 if self._shared is None else self._shared.nbytes)

    def projections(self, prefix: str) -> Projections:
        """None: an adapter of an expert would have to follow its rows through the router's choice."""
        yield from ()

    def parameters(self, prefix: str) -> NamedParameters:
        yield from self._router.parameters(prefix)
        yield from self._mlps.parameters(f"{prefix}experts.")
        if self._shared is not None:
            yield from self._shared.parameters(prefix)


class SingleExperts:
    """Experts whose weights are matrices by themselves, in any form that a matrix has; a step reads those chosen.

    The host must know the choice, so that a device would be waited for.
    """

    def __init__(
        self,
        spec: ModelSpec,
        experts: ExpertsSpec,
        backend: AttentionBackend,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._min_rows = backend.min_rows
        self._mlps = [
            GatedMLP(
                spec.hidden_size,
                experts.intermediate_size,
                spec.activation,
                backend,
                bias=experts.has_bias,
                dtype=dtype,
                device=device,
            )
            for _ in range(experts.num_experts)
        ]

    def __call__(self, x: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """See `ExpertMLPs`. Adds in the order of the experts' numbers."""
        grouping = Grouping.by_expert(expert_ids, len(self._mlps))
        weights = weights.reshape(-1)[grouping.pairs, None]
        starts = grouping.offsets.tolist()
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for mlp, start, end in zip(self._mlps, starts, starts[1:], strict=False):
            if start == end:
                continue
            token_ids = grouping.token_ids[start:end]
            rows = x.index_select(0, token_ids)
            if end - start < self._min_rows:
                rows = rows.repeat(self._min_rows, 1)
            total.index_add_(0, token_ids, mlp(rows)[: end - start] * weights[start:end])
        return total.to(x.dtype)

    @property
    def nbytes(self) -> int:
        return sum(mlp.nbytes for mlp in self._mlps)

    def parameters(self, prefix: str) -> NamedParameters:
        for number, mlp in enumerate(self._mlps):
            yield from mlp.parameters(f"{prefix}{number}.")


class StackedExperts:
    """Experts whose weights are floats in one stack, all multiplied in one launch: nothing waits for the choice."""

    def __init__(
        self,
        spec: ModelSpec,
        experts: ExpertsSpec,
        backend: AttentionBackend,
        product: ExpertProduct,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._num_experts = experts.num_experts
        self._activation = spec.activation
        self._backend = backend
        self._product = product
        stack = partial(_Stack, experts.num_experts, has_bias=experts.has_bias, dtype=dtype, device=device)
        self._gate_up = stack(spec.hidden_size, dict.fromkeys(("gate_proj", "up_proj"), experts.intermediate_size))
        self._down = stack(experts.intermediate_size, {"down_proj": spec.hidden_size})

    def __call__(self, x: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """See `ExpertMLPs`. Adds in the order of the router's choice."""
        grouping = Grouping.by_expert(expert_ids, self._num_experts)
        gate_up = self._gate_up.multiply(self._product, x, grouping, grouping.token_ids)
        gated = self._backend.gated(gate_up, self._activation)
        return grouping.combine(self._down.multiply(self._product, gated, grouping), weights)

    @property
    def nbytes(self) -> int:
        return self._gate_up.nbytes + self._down.nbytes

    def parameters(self, prefix: str) -> NamedParameters:
        yield from self._gate_up.parameters(prefix)
        yield from self._down.parameters(prefix)


class _Stack:
    """One matrix of each expert, of one or more projections, one after the other; ``outputs`` as `Linear` has them."""

    def __init__(
        self,
        num_experts: int,
        in_features: int,
        outputs: dict[str, int],
        *,
        has_bias: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._num_experts = num_experts
        self._outputs = outputs
        self._rows = sum(outputs.values())
        self._place = WeightPlace(num_experts * self._rows, in_features, dtype=dtype, device=device)
        self._bias = torch.empty(num_experts, self._rows, dtype=dtype, device=device) if has_bias else None

    def multiply(
        self, product: ExpertProduct, x: torch.Tensor, grouping: Grouping, token_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Sorted rows times their experts' weights, plus their biases."""
        weight = self._place.tensor.view(self._num_experts, self._rows, -1)
        multiplied = product(x, weight, grouping.offsets, token_ids)
        return multiplied if self._bias is None else multiplied + self._bias[grouping.expert_ids]

    @property
    def nbytes(self) -> int:
        return self._place.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def parameters(self, prefix: str) -> NamedParameters:
        for expert in range(self._num_experts):
            start = 0
            for name, rows in self._outputs.items():
                first = expert * self._rows + start
                place = partial(self._place.part, first, first + rows)
                yield f"{prefix}{expert}.{name}.weight", Parameter(place, (rows, self._place.columns))
                if self._bias is not None:
                    yield f"{prefix}{expert}.{name}.bias", Parameter.of(self._bias[expert, start : start + rows])
                start += rows
