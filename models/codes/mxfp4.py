"""Stacks of experts in MXFP4 as gpt-oss publishes them: tensors in pairs, of 4-bit floats and of their scales.

``kernels.mxfp4`` has what they mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from models.safetensors_file import SafetensorsTensor

ENDINGS = ("blocks", "scales")


def single_experts(tensors: Iterable[SafetensorsTensor]) -> Iterator[SafetensorsTensor]:
    """``tensors``, with each stack ``experts.NAME_blocks`` or ``_scales`` cut into ``experts.0.NAME.blocks`` ..."""
    for tensor in tensors:
        stem, _, ending = tensor.name.rpartition("_")
        before, _, name = stem.rpartition(".")
        if ending not in ENDINGS or not before.endswith(".experts"):
            yield tensor
            continue
        num_experts = tensor.shape[0] if tensor.shape else 0
        size = len(tensor.data) // max(num_experts, 1)
        for expert in range(num_experts):
            data = tensor.data[expert * size : (expert + 1) * size]
            yield replace(tensor, name=f"{before}.{expert}.{name}.{ending}", shape=tensor.shape[1:], data=data)
