"""Weights of safetensors files, put straight into place, with one cast, from memory-mapped files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from models.errors import CheckpointError
from models.parameter import Parameter
from models.places import Places
from models.tensor_names import Placement


def load_safetensors(files: tuple[Path, ...], places: Places, report: Callable[[int, int], None]) -> None:
    """Fill ``places`` from all ``files``; ``report`` hears of stored bytes (done, total). Raises CheckpointError."""
    total = sum(file.stat().st_size for file in files)
    done = 0
    for file in files:
        try:
            with safe_open(file, framework="pt", device="cpu") as shard:
                for name in shard.keys():  # noqa: SIM118 - not a mapping
                    values = shard.get_tensor(name)
                    for placement, parameter in places.claim(name, tuple(values.shape), file):
                        _fill(places, placement, parameter, _part(values, placement))
                    done += values.nbytes
                    report(done, total)
        except SafetensorError as error:
            raise CheckpointError(f"{file} is not a readable safetensors file: {error}") from None
    report(total, total)


def _part(values: torch.Tensor, placement: Placement) -> torch.Tensor:
    if placement.expert is not None:
        values = values[placement.expert]
    if placement.is_transposed and values.ndim == 2:
        values = values.T
    if placement.rows is None:
        return values
    return values[placement.rows if isinstance(placement.rows, slice) else torch.from_numpy(placement.rows)]


def _fill(places: Places, placement: Placement, parameter: Parameter, values: torch.Tensor) -> None:
    kept = places.kept.get(placement.name)
    if kept is not None:
        kept.pack_floats(0, values, torch.get_num_threads())
    else:
        parameter.view.copy_(values)
        if parameter.plus_one:
            parameter.view.add_(1.0)
    places.filled(parameter, values.numel())
