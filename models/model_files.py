"""ModelFiles: which files of a directory, or of a repository on the hub, make up the model that is meant.

Decides by names, before anything is read or downloaded. Knows what models are published as, and says what to do where
that is something else: pickled weights, an adapter, the layout of one author's own tools, several models at once.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from models.errors import CheckpointError
from models.gguf_shards import model_stem, shard_names

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
ADAPTER_CONFIG = "adapter_config.json"
_SINGLE = "model.safetensors"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_NO_PICKLES = ("training_args.bin", "optimizer.pt", "scheduler.pt")
_OTHER_WEIGHTS = ("consolidated", "adapter_model")  # an author's own layout of the same weights; an adapter
_NO_MODELS = ("mmproj", "imatrix")  # GGUF files that belong to a model: its eyes, and what it was quantised by
_LISTED = 12  # files that an error names


class CheckpointFormat(enum.StrEnum):
    """How the weights are stored."""

    GGUF = "gguf"
    SAFETENSORS = "safetensors"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The choice. ``weights`` are names: the shards of one GGUF model in order, or the ``*.safetensors`` there are."""

    format: CheckpointFormat
    weights: tuple[str, ...]


def choose_files(names: Iterable[str], where: str, read_base_model: Callable[[], object]) -> ModelFiles:
    """The model among ``names``, files of the place that ``where`` names; paths use slashes.

    Safetensors in Hugging Face layout, or the only GGUF model. ``read_base_model`` tells, where there is an adapter
    alone, what it was made for. Raises CheckpointError.
    """
    files = sorted(names)
    top = [name for name in files if "/" not in name]
    safetensors = safetensors_of(top)
    if CONFIG in top and safetensors:
        return ModelFiles(CheckpointFormat.SAFETENSORS, safetensors)
    ggufs = gguf_models(files)
    if len(ggufs) > 1:
        raise CheckpointError(f"{where} holds {len(ggufs)} GGUF models, name one of them: {_listed(ggufs)}")
    if ggufs:
        return ModelFiles(CheckpointFormat.GGUF, _whole(ggufs[0], files, where))
    raise CheckpointError(_refusal(top, where, safetensors, read_base_model))


def choose_gguf(names: Iterable[str], where: str, wanted: str) -> ModelFiles:
    """The GGUF model that ``wanted`` names: a file, or the end of its name such as ``Q4_K_M``, in any case.

    Where several end so, the shortest name is meant: ``M-Q4_K_M.gguf`` rather than ``M-UD-Q4_K_M.gguf``. Raises
    CheckpointError that lists what there is.
    """
    files = sorted(names)
    models = gguf_models(files)
    if wanted.lower().endswith(".gguf"):
        found = [model for model in models if wanted in (model, *shard_names(model))]
    else:
        ending = re.compile(rf"(?:.*[-._/])?{re.escape(wanted)}", re.IGNORECASE | re.DOTALL)
        found = [model for model in models if ending.fullmatch(model_stem(model))]
        shortest = min((len(model_stem(model)) for model in found), default=0)
        found = [model for model in found if len(model_stem(model)) == shortest]
    if not found:
        there = f"GGUF models there: {_listed(models)}" if models else "it has no GGUF files"
        raise CheckpointError(f"{where} has no GGUF model {wanted}; {there}")
    if len(found) > 1:
        raise CheckpointError(f"{where} has {len(found)} GGUF models {wanted}, name one file: {_listed(found)}")
    return ModelFiles(CheckpointFormat.GGUF, _whole(found[0], files, where))


def safetensors_of(names: Iterable[str]) -> tuple[str, ...]:
    """Names of the weights in Hugging Face layout among those of one directory."""
    found = [name for name in names if name.endswith(".safetensors") and not name.startswith(_OTHER_WEIGHTS)]
    return tuple(sorted(found))


def gguf_models(names: Iterable[str]) -> list[str]:
    """The GGUF models among ``names``, each by the name of its file, or of one of its shards."""
    models: dict[str, str] = {}
    for name in names:
        file = name.rpartition("/")[2].lower()
        if file.endswith(".gguf") and not any(word in file for word in _NO_MODELS):
            models.setdefault(shard_names(name)[0], name)
    return sorted(models.values())


def _whole(model: str, names: Sequence[str], where: str) -> tuple[str, ...]:
    shards = shard_names(model)
    missing = [shard for shard in shards if shard not in names]
    if missing:
        raise CheckpointError(f"{where} lacks {_listed(missing)} of the {len(shards)} shards of {model_stem(model)}")
    return shards


def _refusal(
    names: Sequence[str], where: str, safetensors: Sequence[str], read_base_model: Callable[[], object]
) -> str:
    pickles = [name for name in names if name.endswith(_PICKLES) and name not in _NO_PICKLES]
    if ADAPTER_CONFIG in names and not safetensors:
        base = read_base_model()
        return (
            f"{where} holds a LoRA adapter and no model: serve the model that it was made for"
            f"{f', {base},' if isinstance(base, str) and base else ''} and load the adapter into it"
        )
    if pickles and not safetensors:
        return (
            f"{where} holds only pickled weights ({pickles[0]}), which can run code when they are loaded: convert them "
            "where you trust them, with save_pretrained(..., safe_serialization=True) of transformers, and serve that"
        )
    if any(name.startswith("consolidated") and name.endswith(".safetensors") for name in names) and not safetensors:
        return (
            f"{where} holds its weights in Mistral's own layout alone (consolidated*.safetensors): serve a conversion "
            f"into Hugging Face layout, with {CONFIG} and model*.safetensors, or a GGUF file"
        )
    if safetensors:
        return f"{where} has {safetensors[0]} and no {CONFIG}, which says what model it is"
    if CONFIG in names:
        return f"{where} has a {CONFIG} and no *.safetensors"
    return f"{where} has neither a {CONFIG} nor a GGUF file"


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{', '.join(names[:_LISTED])}{rest}"
