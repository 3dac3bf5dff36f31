"""Parameter: how the loader reaches a weight of a model.

Knows a place and a shape, nothing of files, formats or what the weight is for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from kernels.products import KeptMatrix


@dataclass(frozen=True, slots=True)
class Parameter:
    """A place for one tensor of a checkpoint.

    ``view`` is where it goes, often a slice of a fused weight; its memory is taken when it is first asked for.
    ``shape`` is the shape it has, there and in a checkpoint. ``plus_one`` marks RMSNorm weights of Gemma: Hugging Face
    files store them less one, GGUF files as they are used. ``when_filled`` is to be called once, when all parameters
    that carry it have their values: the model may then keep them in a faster form, and whoever holds a view holds
    memory that nobody needs.

    ``keep``, where there is one, takes the weight in quantised form instead of values in ``view``, and the input that
    each of its columns belongs to, if these are not in order; either all parameters that carry the same ``when_filled``
    are kept, or none.
    """

    place: Callable[[], torch.Tensor]
    shape: tuple[int, ...]
    plus_one: bool = False
    when_filled: Callable[[], None] | None = None
    keep: Callable[[KeptMatrix, torch.Tensor | None], None] | None = None

    @classmethod
    def of(cls, tensor: torch.Tensor, *, plus_one: bool = False) -> Parameter:
        """The place of a tensor that is there and stays as it is."""
        return cls(lambda: tensor, tuple(tensor.shape), plus_one)

    @property
    def view(self) -> torch.Tensor:
        return self.place()

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


NamedParameters = Iterator[tuple[str, Parameter]]
