"""CodesSpec: in which codes a checkpoint's weights are published, from the ``quantization_config`` of its config.

Imports no torch. What would change an answer and is not computed is refused.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from models.fields import Fields


class CodesMethod(enum.StrEnum):
    """Under the names of ``quant_method``."""

    GPTQ = "gptq"
    AWQ = "awq"
    COMPRESSED_TENSORS = "compressed-tensors"
    FP8 = "fp8"
    MXFP4 = "mxfp4"


class CodesForm(enum.StrEnum):
    """What a code is, under the names by which kernels know it: 4 bits without a sign, int8, float8_e4m3fn, or twice a
    4-bit float, as an int8.
    """

    BITS4 = "codes4"
    INT8 = "codes8"
    FP8 = "fp8"
    MXFP4 = "MXFP4"


@dataclass(frozen=True, slots=True)
class CodesSpec:
    """``form`` of the codes. ``is_packed``: several lie in one int32. ``zero_offset`` is added to stored zeros.

    ``has_index``: columns do not lie in the order of their groups, and each matrix says to which it belongs.
    ``has_zeros``: each matrix brings its zeros, which are half the range of its codes otherwise.
    """

    method: CodesMethod
    form: CodesForm
    is_packed: bool = True
    zero_offset: int = 0
    has_index: bool = False
    has_zeros: bool = False

    @property
    def bits(self) -> int:
        return 4 if self.form is CodesForm.BITS4 else 8


def read_codes(fields: Fields) -> CodesSpec:
    """The codes of a ``quantization_config``. Raises CheckpointError for those that are not served."""
    method = fields.choice("quant_method", {one.value: one.value for one in CodesMethod})
    return _READERS[CodesMethod(method)](fields)


def _gptq(fields: Fields) -> CodesSpec:
    bits = fields.integer("bits")
    if bits not in (4, 8):
        raise fields.error("bits", f"is {bits}, and GPTQ weights of 4 and 8 bits are supported")
    if bits == 8 and not fields.flag("sym", default=True):
        raise fields.error("sym", "is False, and GPTQ weights of 8 bits are supported where they are symmetric")
    offset = fields.choice("checkpoint_format", {"gptq": "1", "gptq_v2": "0"}, "gptq")
    form = CodesForm.BITS4 if bits == 4 else CodesForm.INT8
    has_index = fields.flag("desc_act", default=False)
    return CodesSpec(CodesMethod.GPTQ, form, zero_offset=int(offset), has_index=has_index)


def _awq(fields: Fields) -> CodesSpec:
    bits = fields.integer("bits" if fields.get("bits") is not None else "w_bit", 4)
    if bits != 4:
        raise fields.error("bits", f"is {bits}, and AWQ weights of 4 bits are supported")
    version = fields.get("version")
    if version is not None and str(version).lower() != "gemm":
        raise fields.error("version", f"is {version!r}, and AWQ weights of the layout 'gemm' are supported")
    return CodesSpec(CodesMethod.AWQ, CodesForm.BITS4)


def _fp8(fields: Fields) -> CodesSpec:
    fields.refuse_unless("fmt", "e4m3")
    return CodesSpec(CodesMethod.FP8, CodesForm.FP8, is_packed=False)


def _mxfp4(fields: Fields) -> CodesSpec:
    return CodesSpec(CodesMethod.MXFP4, CodesForm.MXFP4)


def _compressed_tensors(fields: Fields) -> CodesSpec:
    groups = fields.part("config_groups")
    found = {_group(fields, group) for group in (groups.parts() if groups is not None else ())}
    if len(found) != 1:
        raise fields.error("config_groups", f"has {len(found)} kinds of weights, and one is supported")
    return found.pop()


def _group(fields: Fields, group: Fields) -> CodesSpec:
    weights = group.part("weights")
    if weights is None:
        raise fields.error("config_groups", "has a group without weights")
    bits, kind = weights.integer("num_bits"), weights.choice("type", {"int": "int", "float": "float"}, "int")
    weights.refuse_unless("strategy", "group", "channel", "tensor", "block")
    form = {(4, "int"): CodesForm.BITS4, (8, "int"): CodesForm.INT8, (8, "float"): CodesForm.FP8}.get((bits, kind))
    if form is None:
        raise fields.error("config_groups", f"has weights of {bits} bits of the type {kind!r}, which is not supported")
    layout = fields.get("format") if group.get("format") is None else group.get("format")
    if layout not in _LAYOUTS:
        raise fields.error("format", f"is {layout!r}, which is not supported; supported are {', '.join(_LAYOUTS)}")
    is_packed = layout == "pack-quantized"
    return CodesSpec(
        CodesMethod.COMPRESSED_TENSORS,
        form,
        is_packed=is_packed,
        has_index=is_packed and weights.get("actorder") in ("group", "dynamic"),
        has_zeros=is_packed and not weights.flag("symmetric", default=True),
    )


_LAYOUTS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_READERS = {
    CodesMethod.GPTQ: _gptq,
    CodesMethod.AWQ: _awq,
    CodesMethod.COMPRESSED_TENSORS: _compressed_tensors,
    CodesMethod.FP8: _fp8,
    CodesMethod.MXFP4: _mxfp4,
}
