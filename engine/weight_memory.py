"""Whether the weights of a model find room in the host's memory, before the first of them is read.

Knows the bytes that weights take at least, in the form in which they are kept; nothing of pages.
"""

from __future__ import annotations

from engine.choices import Choices
from engine.errors import ConfigError
from engine.machine import available_memory
from models.description import weight_census
from models.weight_forms import Quantization

_LEAST_BYTES = {Quantization.INT8: 1.0, Quantization.INT4: 0.5}  # of a parameter
_FLOAT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def check_weight_memory(choices: Choices) -> None:
    """Refuse weights that are sure to find no room: untouched they cost nothing, later they kill the process.

    Raises ConfigError, with both sizes.
    """
    wanted, left = _least_bytes(choices), available_memory()
    if wanted > left:
        raise ConfigError(
            f"the weights take at least {wanted / 1e9:.2f} GB, more than the {left / 1e9:.2f} GB of memory left: try "
            "--quantization int4, a smaller --dtype or a model of fewer parameters"
        )


def _least_bytes(choices: Choices) -> int:
    census = weight_census(choices.checkpoint, choices.spec)
    if choices.forms is None:
        return census.parameters * choices.dtype.itemsize
    if not choices.forms.keeps_stored:
        return int(census.parameters * _LEAST_BYTES[choices.forms.quantization])
    return sum(
        size // _FLOAT_BYTES[form] * choices.dtype.itemsize if form in _FLOAT_BYTES else size
        for form, size in census.bytes_by_form.items()
    )
