"""Read a LoRA adapter in PEFT's layout: ``adapter_config.json`` beside ``adapter_model.safetensors``.

    base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight      [rank, columns]
    base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight      [outputs, rank]

Knows names, shapes and files, and by whom a projection is computed no more than its name: modules have the names of the
base model's own files, which become those of a decoder's parameters as the weights' do. Never runs a pickle. Invariant:
an adapter is read whole, or a CheckpointError says in one sentence why not, with the file and the key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from models.errors import CheckpointError
from models.lora import LoraAdapter, LoraPlace, LoraWeights
from models.lora_config import PICKLE_FILE, WEIGHTS_FILE, LoraConfig
from models.spec import ModelSpec
from models.tensor_names import Placement, TensorNames

_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def read_adapter(
    directory: Path, spec: ModelSpec, names: TensorNames, places: Mapping[str, LoraPlace], *, max_rank: int
) -> LoraAdapter:
    """The adapter in ``directory`` for the model of ``spec``, whose projections are ``places``. Raises CheckpointError.

    ``names`` are those of the Hugging Face files of the model's family.
    """
    config = LoraConfig.read(directory)
    file = directory / WEIGHTS_FILE
    if not file.is_file():
        if (directory / PICKLE_FILE).exists():
            raise CheckpointError(
                f"{directory} has only {PICKLE_FILE}, a pickle, which can run code when it is loaded: convert it to "
                f"{WEIGHTS_FILE}"
            )
        raise CheckpointError(f"{directory} has no {WEIGHTS_FILE}")
    weights: dict[str, LoraWeights] = {}
    for module, a, b in _modules(file):
        placements = _placements(file, module, spec, names, places)
        outputs = sum(places[_stem(part)].outputs for part in placements)
        rank = config.rank_of(module)
        if rank > max_rank:
            raise CheckpointError(
                f"{config.source}: the adapter of {module!r} has rank {rank}, above --max-lora-rank {max_rank}"
            )
        _check_shape(file, _PREFIX + module + _A, a, (rank, places[_stem(placements[0])].columns))
        _check_shape(file, _PREFIX + module + _B, b, (outputs, rank))
        scaled = b.float() * config.scale_of(module)
        if not scaled.isfinite().all():
            raise CheckpointError(
                f"{file}: the adapter of {module!r}, times its scale {config.scale_of(module):g}, is not finite"
            )
        for part in placements:
            if _stem(part) in weights:
                raise CheckpointError(f"{file}: {module!r} changes {_stem(part)!r}, which another tensor changes too")
            weights[_stem(part)] = LoraWeights(a.float(), _rows(scaled, part))
    if not weights:
        raise CheckpointError(f"{file} holds no weights")
    return LoraAdapter(weights, _digest(weights))


def _modules(file: Path) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Each module that the file changes, with its A and B as they are stored."""
    try:
        with safe_open(file, framework="pt", device="cpu") as stored:
            stored_names = list(stored.keys())
            for name in stored_names:
                module = name.removeprefix(_PREFIX).removesuffix(_A).removesuffix(_B)
                if name not in (_PREFIX + module + _A, _PREFIX + module + _B):
                    raise CheckpointError(f"{file}: the tensor {name!r} is neither A nor B of a linear layer's adapter")
                other = _PREFIX + module + (_B if name.endswith(_A) else _A)
                if other not in stored_names:
                    raise CheckpointError(f"{file}: the tensor {name!r} is there without {other!r}")
                if name.endswith(_A):
                    yield (
                        module,
                        _tensor(file, stored.get_tensor(name), name),
                        _tensor(file, stored.get_tensor(other), other),
                    )
    except SafetensorError as error:
        raise CheckpointError(f"{file} is not a readable safetensors file: {error}") from None


def _tensor(file: Path, values: torch.Tensor, name: str) -> torch.Tensor:
    if values.dtype not in _FLOATS:
        raise CheckpointError(f"{file}: the tensor {name!r} is of {values.dtype}, and should be of floats")
    if not values.isfinite().all():
        raise CheckpointError(f"{file}: the tensor {name!r} has values that are not finite")
    return values


def _placements(
    file: Path, module: str, spec: ModelSpec, names: TensorNames, places: Mapping[str, LoraPlace]
) -> tuple[Placement, ...]:
    """The projections that a module of the base model's files holds."""
    placements = names.placements(f"{module}.weight", spec)
    if placements is None or any(_is_beyond(part, spec) for part in placements):
        raise CheckpointError(f"{file}: the model has no {module!r}, which the adapter changes")
    if not placements or any(_stem(part) not in places for part in placements):
        raise CheckpointError(
            f"{file}: the adapter changes {module!r}; only those of projections of attention and of MLPs can be served"
        )
    return placements


def _is_beyond(placement: Placement, spec: ModelSpec) -> bool:
    index = placement.name.removeprefix("model.layers.").partition(".")[0]
    return index.isdecimal() and int(index) >= spec.num_layers


def _stem(placement: Placement) -> str:
    return placement.name.removesuffix(".weight")


def _rows(values: torch.Tensor, placement: Placement) -> torch.Tensor:
    if placement.rows is None:
        return values
    return values[placement.rows if isinstance(placement.rows, slice) else torch.from_numpy(placement.rows)].clone()


def _check_shape(file: Path, name: str, values: torch.Tensor, expected: tuple[int, int]) -> None:
    shape = tuple(values.shape)
    if shape != expected:
        raise CheckpointError(f"{file}: the tensor {name!r} has the shape {shape} and should have {expected}")


def _digest(weights: Mapping[str, LoraWeights]) -> str:
    """Of names, shapes and values: equal where adapters compute the same."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        for values in (weights[name].a, weights[name].b):
            digest.update(f"{name} {tuple(values.shape)}\n".encode())
            digest.update(values.contiguous().numpy().tobytes())
    return digest.hexdigest()
