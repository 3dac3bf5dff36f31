"""GGUFShards: a model that was cut into several GGUF files, read as one.

A shard is called ``NAME-00002-of-00003.gguf``, and says in its metadata which it is. Knows how shards are named and how
their parts are put together; each of them is a `GGUFFile`. Invariants: all shards are there, each is the one that its
name says, and no tensor is in two of them.

Names and metadata: `gguf-split` of https://github.com/ggml-org/llama.cpp
"""

from __future__ import annotations

import re
from pathlib import Path

from models.gguf_file import GGUFError, GGUFFile

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.IGNORECASE | re.DOTALL)
_MAX_SHARDS = 4096


def model_stem(name: str) -> str:
    """The name of a GGUF file without its ending, and without what makes it one of several."""
    shard = _SHARD.fullmatch(name)
    return shard["stem"] if shard else re.sub(r"\.gguf$", "", name, flags=re.IGNORECASE)


def shard_names(name: str) -> tuple[str, ...]:
    """The names of all files of the model that ``name`` is a file of, in order; ``name`` alone where it is all."""
    shard = _SHARD.fullmatch(name)
    if shard is None or not 1 <= int(shard["number"]) <= int(shard["count"]) <= _MAX_SHARDS:
        return (name,)
    ending = name[shard.end("count") :]
    return tuple(f"{shard['stem']}-{number:05}-of-{shard['count']}{ending}" for number in _numbers(shard["count"]))


def _numbers(count: str) -> range:
    return range(1, int(count) + 1)


def shard_paths(path: Path) -> tuple[Path, ...]:
    """All files of the model that ``path`` is a file of. Raises GGUFError that names those that are missing."""
    paths = tuple(path.with_name(name) for name in shard_names(path.name))
    missing = [one.name for one in paths if not one.exists()]
    if missing:
        raise GGUFError(f"{path} is one of {len(paths)} shards of a model, and {', '.join(missing)} is not beside it")
    return paths


def open_gguf(path: Path) -> GGUFFile:
    """The model that ``path``, any of its files, belongs to. Raises GGUFError."""
    paths = shard_paths(path)
    if len(paths) > 1:
        return GGUFShards(paths)
    file = GGUFFile(path)
    count = file.metadata.get("split.count", 1)
    if isinstance(count, int) and count > 1:
        number = file.metadata.get("split.no", 0)
        number = number + 1 if isinstance(number, int) else "?"
        raise GGUFError(
            f"{path} is shard {number} of {count} of a model, and is not called so: the shards are found by names that "
            f"end in -00001-of-{count:05}.gguf"
        )
    return file


class GGUFShards(GGUFFile):
    """The files of ``paths``, all shards in order: metadata of the first, tensors of all. Raises GGUFError."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        super().__init__(paths[0])
        files = [self, *(GGUFFile(path) for path in paths[1:])]
        tensors = dict(self.tensors)
        for number, file in enumerate(files):
            for key, expected in (("split.no", number), ("split.count", len(files))):
                found = file.metadata.get(key)
                if found != expected:
                    raise GGUFError(f"{file.path}: {key} is {found!r} and should be {expected}, by the file's name")
            if number == 0:
                continue
            for name, tensor in file.tensors.items():
                if name in tensors:
                    raise GGUFError(f"{file.path} has the tensor {name!r}, which is in {tensors[name].file.path} too")
                tensors[name] = tensor
        total = self.metadata.get("split.tensors.count", len(tensors))
        if total != len(tensors):
            raise GGUFError(
                f"{self.path}: split.tensors.count is {total!r}, and the shards hold {len(tensors)} tensors"
            )
        self.tensors = tensors
