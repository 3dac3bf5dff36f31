"""TensorNames: from the tensors of a checkpoint to the parameters of a decoder.

A decoder's parameters have one set of names, those of Llama's Hugging Face files; every family says what its own files
call them, and how tensors that hold several are cut. Knows names and shapes, no values, and imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from models.spec import ModelSpec

Rows = slice | npt.NDArray[np.int64]
_LAYER = re.compile(r"(?:0|[1-9][0-9]{0,5})")  # nothing that is another spelling of the same number
_NUMBER = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Placement:
    """What a stored tensor, or a part of it, becomes.

    ``name`` is that of the parameter. The part is taken in this order: ``expert``, an index into the first dimension;
    ``is_transposed``, whether the file has columns of a matrix first; ``rows`` of what is left, in their order.
    """

    name: str
    rows: Rows | None = None
    expert: int | None = None
    is_transposed: bool = False


# The parts of one tensor of a layer, named as `TensorNames.layer` does.
Cut = Callable[[ModelSpec], Iterable[Placement]]


@dataclass(frozen=True, slots=True)
class TensorNames:
    """What one form of checkpoint calls the tensors of one family.

    ``top`` and ``layer`` map names without their ending (".weight", ".bias") to a parameter's without it, or to how the
    tensor is cut; names of ``layer`` begin after ``layer_prefix`` and the layer's number. A whole name is looked up
    first, and becomes a whole one. A ``*`` stands for the number of an expert. Tensors whose names end in one of
    ``ignored`` hold nothing that is not computed. Names begin with ``root`` in some checkpoints and not in others.
    """

    layer_prefix: str
    top: Mapping[str, str]
    layer: Mapping[str, str | Cut]
    ignored: tuple[str, ...] = ("rotary_emb.inv_freq",)
    root: str = ""

    def placements(self, name: str, spec: ModelSpec) -> tuple[Placement, ...] | None:
        """Where the tensor ``name`` goes; nowhere if it is ignored; None if the family has no such tensor."""
        if name.endswith(self.ignored):
            return ()
        name = name.removeprefix(self.root)
        stem, _, ending = name.rpartition(".")
        if stem in self.top:
            is_tied_head = spec.tied_embeddings and self.top[stem] == "lm_head"
            return () if is_tied_head else (Placement(f"{self.top[stem]}.{ending}"),)
        index, _, rest = name.removeprefix(self.layer_prefix).partition(".")
        if not name.startswith(self.layer_prefix) or not _LAYER.fullmatch(index):
            return None
        parts, suffix = self._parts(rest, spec), ""
        if parts is None:
            stem, _, ending = rest.rpartition(".")
            parts, suffix = self._parts(stem, spec), f".{ending}"
        if parts is None:
            return None
        return tuple(replace(part, name=f"model.layers.{index}.{part.name}{suffix}") for part in parts)

    def _parts(self, name: str, spec: ModelSpec) -> tuple[Placement, ...] | None:
        target = self.layer.get(name)
        if target is None and (number := _NUMBER.search(name)) is not None:
            target = self.layer.get(f"{name[: number.start(1)]}*{name[number.end(1) :]}")
            if isinstance(target, str):
                target = target.replace("*", number[1])
            elif target is not None:
                return tuple(replace(part, name=part.name.replace("*", number[1])) for part in target(spec))
        if target is None:
            return None
        return (Placement(target),) if isinstance(target, str) else tuple(target(spec))
