"""Checkpoint: where a model's files are and what they describe.

Turns what the user typed into files on this machine: nothing (the demo model), a GGUF file, a directory in Hugging Face
layout, or a hub id. Knows names, paths and formats; reads no weight, runs no pickle and imports no torch.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from models.demo import assemble_demo, demo_notice
from models.errors import CheckpointError
from models.gguf_file import GGUFFile
from models.registry import spec_from_config, spec_from_gguf
from models.spec import ModelSpec

DEMO_NAME = "gemma-3-270m"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_PATTERNS = ["*.safetensors", "*.json", "*.model", "*.jinja"]
_HUB_IGNORED = ["*/*", "consolidated*.safetensors"]  # the same weights again, in the layout of the model's authors
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
)


class CheckpointFormat(enum.StrEnum):
    """How the weights are stored."""

    GGUF = "gguf"
    SAFETENSORS = "safetensors"


@dataclass(frozen=True, slots=True)
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
            return spec_from_gguf(self.gguf_file())
        config = self.path / "config.json"
        generation = self.path / "generation_config.json"
        return spec_from_config(
            _read_json(config), _read_json(generation) if generation.exists() else None, source=str(config)
        )

    def gguf_file(self) -> GGUFFile:
        """The open file of a GGUF checkpoint. Raises CheckpointError."""
        if self.format is not CheckpointFormat.GGUF:
            raise CheckpointError(f"{self.path} is not a GGUF file")
        return GGUFFile(self.path)

    def gguf_metadata(self) -> Mapping[str, object]:
        """Metadata of a GGUF checkpoint, its vocabulary under ``tokenizer.ggml.*``. Raises CheckpointError."""
        return self.gguf_file().metadata

    def tokenizer_files(self) -> Mapping[str, Path]:
        """File name to path of what describes the tokenizer in a Hugging Face directory; empty for GGUF."""
        if self.format is CheckpointFormat.GGUF:
            return {}
        return {name: self.path / name for name in _TOKENIZER_FILES if (self.path / name).exists()}

    def weight_files(self) -> tuple[Path, ...]:
        """Every file that holds weights: the shards of the index where there is one. Raises CheckpointError."""
        if self.format is CheckpointFormat.GGUF:
            return (self.path,)
        index = self.path / "model.safetensors.index.json"
        if index.exists():
            names = _read_json(index).get("weight_map")
            if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
                raise CheckpointError(f"{index} has no weight_map of tensor names to files")
            files = tuple(self.path / name for name in dict.fromkeys(names.values()))
        elif (self.path / "model.safetensors").exists():
            files = (self.path / "model.safetensors",)
        else:
            files = tuple(sorted(self.path.glob("*.safetensors")))
        for file in files:
            if file.parent != self.path or not file.exists():
                raise CheckpointError(f"{index} names the shard {file.name}, which is not in {self.path}")
        return files


def resolve_checkpoint(model: str | None, *, revision: str | None = None) -> Checkpoint:
    """Find ``model``: None (the demo model), a path, or a hub id ``org/name`` with an optional revision.

    May download from the hub, or assemble the demo model into the cache, with a progress bar on stderr. A path that
    exists wins over a hub id. Raises CheckpointError.
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
    if _HUB_ID.fullmatch(model) and not model.endswith(".gguf"):
        return _checked_directory(_download(model, revision), model)
    raise CheckpointError(f"{model!r} is neither a file, nor a directory, nor a hub id of the form org/name")


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
    return Checkpoint(path.stem, path, CheckpointFormat.GGUF)


def _local_directory(path: Path) -> Checkpoint:
    name = path.resolve().name
    gguf_files = sorted(path.glob("*.gguf"))
    if not (path / "config.json").exists() and gguf_files:
        if len(gguf_files) > 1:
            raise CheckpointError(f"{path} holds {len(gguf_files)} GGUF files; name one of them")
        return _local_file(gguf_files[0])
    return _checked_directory(path, name)


def _checked_directory(path: Path, name: str) -> Checkpoint:
    has_weights = any(path.glob("*.safetensors"))
    pickles = sorted(file.name for file in path.iterdir() if file.suffix in _PICKLES)
    if pickles and not has_weights:
        raise CheckpointError(
            f"{name} holds only pickled weights ({pickles[0]}), which can run code when they are loaded: "
            f"convert them to safetensors"
        )
    if not (path / "config.json").exists():
        raise CheckpointError(f"{path} has neither a config.json nor a GGUF file")
    if not has_weights:
        raise CheckpointError(f"{path} has a config.json and no *.safetensors")
    return Checkpoint(name, path, CheckpointFormat.SAFETENSORS)


def _download(model: str, revision: str | None) -> Path:
    from huggingface_hub import errors, snapshot_download  # 0.2 s that local models need not wait for

    where = f"{model} at revision {revision}" if revision else model
    try:
        directory = snapshot_download(
            model, revision=revision, allow_patterns=_HUB_PATTERNS, ignore_patterns=_HUB_IGNORED
        )
    except errors.GatedRepoError:
        problem = "is gated: accept its terms on the hub and set HF_TOKEN"
    except errors.RepositoryNotFoundError:
        problem = "is neither a local path nor on the hub, or it is private: check the name, or set HF_TOKEN"
    except errors.RevisionNotFoundError:
        problem = "is not on the hub: check the revision"
    except errors.HFValidationError as error:
        problem = f"is not a valid hub id: {error}"
    except errors.LocalEntryNotFoundError:
        problem = "is not a local path, and the hub cannot be reached to download it"
    except errors.HfHubHTTPError as error:
        problem = f"cannot be downloaded: the hub answered {error.response.status_code}"
    except (OSError, ValueError) as error:
        problem = f"cannot be downloaded: {error}"
    else:
        return Path(directory)
    raise CheckpointError(" ".join(f"{where} {problem}".split()))


def _read_json(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} should hold a JSON object")
    return content
