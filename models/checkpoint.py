"""Checkpoint: where a model's files are and what they describe.

Turns what the user typed into files on this machine: nothing (the demo model), a GGUF file, a directory in Hugging Face
layout, or a hub id. Reads descriptions, no weight; runs no pickle and imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from models.demo import assemble_demo, demo_notice
from models.errors import CheckpointError
from models.gguf_file import GGUFFile
from models.gguf_shards import model_stem, open_gguf, shard_paths
from models.hub import HubId, HubRepository, Reach
from models.mapped_file import MappedFile
from models.model_files import (
    ADAPTER_CONFIG,
    INDEX,
    CheckpointFormat,
    choose_files,
    choose_gguf,
    safetensors_of,
)
from models.registry import spec_from_config, spec_from_gguf
from models.safetensors_file import SafetensorsFile
from models.spec import ModelSpec

__all__ = ["Checkpoint", "CheckpointFormat", "resolve_checkpoint"]

DEMO_NAME = "gemma-3-270m"
_DESCRIPTIONS = (".json", ".model", ".jinja", "merges.txt")
_TEMPLATE_FOLDERS = ("additional_chat_templates/", "chat_templates/")


@dataclass(frozen=True)
class Checkpoint:
    """A model on this machine.

    ``path`` is the GGUF file, or the directory of ``config.json`` and ``*.safetensors``. ``notice`` is one line that
    the user must see before the model is served (the demo model's terms); ``is_demo`` tells that model from all others.
    """

    name: str
    path: Path
    format: CheckpointFormat
    notice: str | None = None
    is_demo: bool = False

    def read_spec(self) -> ModelSpec:
        """The model's shapes and constants. Raises CheckpointError."""
        if self.format is CheckpointFormat.GGUF:
            return spec_from_gguf(self.gguf_file)
        config = self.path / "config.json"
        generation = self.path / "generation_config.json"
        return spec_from_config(
            read_json(config), read_json(generation) if generation.exists() else None, source=str(config)
        )

    @cached_property
    def gguf_file(self) -> GGUFFile:
        """The open file of a GGUF checkpoint, all shards of it as one, for as long as this is kept. CheckpointError."""
        if self.format is not CheckpointFormat.GGUF:
            raise CheckpointError(f"{self.path} is not a GGUF file")
        return open_gguf(self.path)

    def gguf_metadata(self) -> Mapping[str, object]:
        """Metadata of a GGUF checkpoint, its vocabulary under ``tokenizer.ggml.*``. Raises CheckpointError."""
        return self.gguf_file.metadata

    def weight_files(self) -> tuple[Path, ...]:
        """Every file that holds weights: the shards in order, or those of the index. Raises CheckpointError."""
        if self.format is CheckpointFormat.GGUF:
            return shard_paths(self.path)
        index = self.path / INDEX
        if not index.exists():
            return tuple(self.path / name for name in safetensors_of(file.name for file in self.path.iterdir()))
        shards = _shards_of(read_json(index), index)
        for shard in shards:
            if Path(shard).name != shard or not (self.path / shard).exists():
                raise CheckpointError(f"{index} names the shard {shard}, which is not in {self.path}")
        return tuple(self.path / shard for shard in shards)

    @cached_property
    def safetensors_files(self) -> tuple[SafetensorsFile, ...]:
        """The open files of a checkpoint in Hugging Face layout, likewise, which hold what its index says."""
        if self.format is not CheckpointFormat.SAFETENSORS:
            raise CheckpointError(f"{self.path} is not a directory of safetensors")
        files = {path.name: SafetensorsFile(path) for path in self.weight_files()}
        index = self.path / INDEX
        if index.exists():
            for tensor, shard in _weight_map(read_json(index), index).items():
                if tensor not in files[shard].tensors:
                    raise CheckpointError(f"{index} names the tensor {tensor!r} in {shard}, which does not hold it")
        return tuple(files.values())

    def mapped_files(self) -> tuple[MappedFile, ...]:
        """The open files that hold tensors, each once. Raises CheckpointError."""
        parts = (self.gguf_file,) if self.format is CheckpointFormat.GGUF else self.safetensors_files
        return tuple(dict.fromkeys(tensor.file for part in parts for tensor in part.tensors.values()))


def resolve_checkpoint(model: str | None, *, revision: str | None = None, offline: bool = False) -> Checkpoint:
    """Find ``model``: None (the demo model), a path, or a hub id, with an optional revision of the latter.

    A hub id is ``org/name``; of several GGUF models there, ``org/name:Q4_K_M`` is the one whose file name ends so, and
    ``org/name/file.gguf`` the one of that name. May download from the hub (not if ``offline``), or assemble the demo
    model into the cache, with a progress bar on stderr. A path that exists wins over a hub id. Raises CheckpointError.
    """
    if model is None:
        return Checkpoint(DEMO_NAME, assemble_demo(), CheckpointFormat.GGUF, demo_notice(), is_demo=True)
    path = Path(model).expanduser()
    try:
        is_local = path.exists()
    except OSError:  # a name too long for a path, say
        is_local = False
    if is_local:
        if revision is not None:
            raise CheckpointError(f"a revision ({revision}) applies to a hub id, and {path} is a local path")
        return _local_directory(path) if path.is_dir() else _local_file(path)
    hub_id = HubId.parse(model)
    if hub_id is None:
        raise CheckpointError(f"{model!r} is neither a file, nor a directory, nor a hub id of the form org/name")
    return _hub_checkpoint(model, hub_id, HubRepository(hub_id.repository, revision, offline=offline))


def _local_file(path: Path) -> Checkpoint:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be opened: {error.strerror or error}") from None
    if magic != b"GGUF":
        raise CheckpointError(
            f"{path} is not a GGUF file; give a GGUF file or a directory with config.json and *.safetensors"
        )
    return Checkpoint(model_stem(path.name), shard_paths(path)[0], CheckpointFormat.GGUF)


def _local_directory(path: Path) -> Checkpoint:
    try:
        names = [file.name for file in path.iterdir() if file.exists()]
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    files = choose_files(names, str(path), lambda: _base_model(path / ADAPTER_CONFIG))
    if files.format is CheckpointFormat.GGUF:
        return _local_file(path / files.weights[0])
    return Checkpoint(path.resolve().name, path, CheckpointFormat.SAFETENSORS)


def _hub_checkpoint(name: str, hub_id: HubId, repository: HubRepository) -> Checkpoint:
    where = str(repository) if repository.reach is Reach.ONLINE else f"what the cache has of {repository}"
    if hub_id.wanted is not None:
        files = choose_gguf(repository.files, where, hub_id.wanted)
    else:
        files = choose_files(
            repository.files, where, lambda: _base_model(repository.download([ADAPTER_CONFIG]) / ADAPTER_CONFIG)
        )
    if files.format is CheckpointFormat.GGUF:
        directory = repository.download(files.weights)
        return Checkpoint(name, directory / files.weights[0], files.format)
    descriptions = [file for file in repository.files if _describes(file)]
    weights = files.weights
    if INDEX in descriptions:
        index = repository.download([INDEX]) / INDEX
        weights = tuple(_shards_of(read_json(index), index))
        if missing := [shard for shard in weights if shard not in repository.files]:
            raise (
                CheckpointError(f"{repository} lacks {', '.join(missing)}, which its {INDEX} names")
                if repository.reach is Reach.ONLINE
                else repository.lacks(missing)
            )
    return Checkpoint(name, repository.download([*descriptions, *weights]), files.format)


def _describes(file: str) -> bool:
    """Whether a file of a repository tells of a model beside its weights."""
    return file.endswith(_DESCRIPTIONS) and ("/" not in file or file.startswith(_TEMPLATE_FOLDERS))


def _base_model(adapter_config: Path) -> object:
    """What an adapter says it was made for."""
    return read_json(adapter_config).get("base_model_name_or_path")


def _weight_map(index: Mapping[str, object], source: Path) -> dict[str, str]:
    names = index.get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise CheckpointError(f"{source} has no weight_map of tensor names to files")
    return names


def _shards_of(index: Mapping[str, object], source: Path) -> list[str]:
    """The files that an index names, each once."""
    return list(dict.fromkeys(_weight_map(index, source).values()))


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in a file. Raises CheckpointError."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} should hold a JSON object")
    return content
