"""Family: what tells one kind of decoder from the others before a weight is read. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from models.fields import Fields
from models.spec import ModelSpec
from models.tensor_names import TensorNames

Values = dict[str, object]


def _always(values: Values) -> bool:
    return True


def _as_it_is(values: Values) -> Values:
    return values


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of decoder.

    ``name`` is the spec's ``architecture``. ``architectures`` are its names in ``config.json``, of a class or of a
    model type; ``gguf_architectures`` those in GGUF files. ``read`` makes the spec, but for special tokens and the
    stored dtype. ``complete_gguf`` adds to the description of a GGUF file, under a config's keys, what such files leave
    to the reader. ``takes_gguf`` tells the files of this family from others' of the same ``gguf_architectures``.
    """

    name: str
    architectures: tuple[str, ...]
    read: Callable[[Fields], ModelSpec]
    names: TensorNames
    gguf_architectures: tuple[str, ...] = ()
    gguf_names: TensorNames | None = None
    complete_gguf: Callable[[Values], Values] = _as_it_is
    takes_gguf: Callable[[Values], bool] = _always
