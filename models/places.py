"""Places: the parameters of a model while it is loaded, each to be filled once.

Knows names and shapes, no formats. Invariant: a tensor that fits nothing, or something that was filled before, is a
CheckpointError that names it, both shapes and the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock

from kernels.products import KeptMatrix
from models.errors import CheckpointError
from models.parameter import Parameter
from models.spec import ModelSpec
from models.tensor_names import Placement, TensorNames


class Places:
    """``parameters`` by their names, which ``names`` makes of a checkpoint's.

    ``kept`` are the matrices of those that are quantised; with ``keeps_stored`` they are filled with a file's own bits,
    and where they ``are_packed`` they have their weights already, which nobody is to read again.
    """

    def __init__(
        self,
        spec: ModelSpec,
        names: TensorNames,
        parameters: Mapping[str, Parameter],
        kept: Mapping[str, KeptMatrix],
        source: Path,
        *,
        keeps_stored: bool,
        are_packed: bool = False,
    ) -> None:
        self.kept = kept
        self.keeps_stored = keeps_stored
        self._are_packed = are_packed
        self._spec = spec
        self._names = names
        self._source = source
        self._left = dict(parameters)
        self._claimed: set[str] = set()
        self._missing_elements: Counter[Callable[[], None]] = Counter()
        for parameter in self._left.values():
            if parameter.when_filled is not None:
                self._missing_elements[parameter.when_filled] += parameter.num_elements
        self._lock = Lock()

    def claim(self, name: str, shape: tuple[int, ...], file: Path) -> list[tuple[Placement, Parameter]]:
        """Where the tensor ``name`` of ``file`` goes, part by part; nowhere when the model has what it holds."""
        placements = self._names.placements(name, self._spec)
        if placements == ():
            return []
        wanted = [part.name for part in placements or ()]
        if not wanted or any(one not in self._left for one in wanted):
            is_second = any(one in self._claimed for one in wanted)
            problem = "is there twice" if is_second else "is not part of this architecture"
            raise CheckpointError(f"{file}: the tensor {name!r} of shape {shape} {problem}")
        assert placements is not None
        found = [(part, self._left[part.name]) for part in placements]
        if shape != (expected := _expected_shape(found)):
            raise CheckpointError(f"{file}: the tensor {name!r} has the shape {shape} and should have {expected}")
        for one in wanted:
            del self._left[one]
        self._claimed.update(wanted)
        for part, parameter in found:
            if self._is_packed(part):
                self.filled(parameter, parameter.num_elements)
        return [(part, parameter) for part, parameter in found if not self._is_packed(part)]

    def claim_packed(self, name: str) -> bool:
        """Claim the tensor ``name``, whatever its shape, if the model has all that it holds; whether it has."""
        parts = self._names.placements(name, self._spec)
        if not parts or not all(self._is_packed(part) and part.name in self._left for part in parts):
            return False
        for part in parts:
            parameter = self._left.pop(part.name)
            self.filled(parameter, parameter.num_elements)
            self._claimed.add(part.name)
        return True

    def _is_packed(self, part: Placement) -> bool:
        return self._are_packed and part.name in self.kept

    def filled(self, parameter: Parameter, num_elements: int) -> None:
        """Count values that are in place; the thread that brings the last of a weight calls its ``when_filled``."""
        if parameter.when_filled is None:
            return
        with self._lock:
            self._missing_elements[parameter.when_filled] -= num_elements
            is_last = self._missing_elements[parameter.when_filled] == 0
        if is_last:
            parameter.when_filled()

    def require_all_filled(self) -> None:
        if self._left:
            name, parameter = next(iter(self._left.items()))
            others = f" and {len(self._left) - 1} more" if len(self._left) > 1 else ""
            raise CheckpointError(f"{self._source}: the tensor {name!r} of shape {parameter.shape}{others} is missing")


def _expected_shape(parts: Sequence[tuple[Placement, Parameter]]) -> tuple[int, ...]:
    """Of a stored tensor that holds exactly these parameters."""
    first, parameter = parts[0]
    num_rows = sum(one.shape[0] for part, one in parts if part.expert == first.expert)
    shape = (num_rows, *parameter.shape[1:])
    if first.is_transposed:
        shape = shape[::-1]
    return shape if first.expert is None else (len({part.expert for part, _ in parts}), *shape)
