"""WeightCensus: how many parameters a checkpoint stores, as what, in how many bytes; by the tensors' headers alone.

Knows how published checkpoints call what belongs to a quantised weight. Imports no torch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from models.spec import ModelSpec

_COMPUTED = ("rotary_emb.inv_freq", "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_HEADS = ("lm_head.weight", "output.weight")
_BESIDE_CODES = (  # scales and the like: bytes, but no parameters
    ".scales", ".qzeros", ".g_idx", ".weight_scale", ".weight_scale_inv", ".weight_zero_point", ".weight_shape",
    ".weight_g_idx", ".input_scale", ".k_scale", ".v_scale", "_scales",
)  # fmt: skip
_PACKED = (".qweight", ".weight_packed", "_blocks")
_EXPERTS = (".experts.", "_exps.")
_DEFAULT_CODE_BITS = 4


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What a header says of a tensor; ``form`` is the file's word for its type, such as ``BF16`` or ``Q4_K``."""

    name: str
    form: str
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class WeightCensus:
    """``active`` are the parameters that one token is multiplied with: all, or of experts those it goes to."""

    parameters: int
    active: int
    num_bytes: int
    bytes_by_form: Mapping[str, int]

    @classmethod
    def of(cls, tensors: Iterable[StoredTensor], spec: ModelSpec, code_bits: int | None = None) -> WeightCensus:
        """Count. A tied head that is stored all the same is none. ``code_bits``: of codes in wider integers."""
        parameters = of_experts = 0
        bytes_by_form: Counter[str] = Counter()
        for tensor in tensors:
            if tensor.name.endswith(_COMPUTED) or (spec.tied_embeddings and tensor.name in _HEADS):
                continue
            bytes_by_form[tensor.form] += tensor.num_bytes
            count = _count(tensor, code_bits or _DEFAULT_CODE_BITS)
            parameters += count
            if any(part in tensor.name for part in _EXPERTS):
                of_experts += count
        idle = (
            0 if spec.experts is None else of_experts - of_experts * spec.experts.per_token // spec.experts.num_experts
        )
        return cls(parameters, parameters - idle, bytes_by_form.total(), dict(bytes_by_form.most_common()))


def _count(tensor: StoredTensor, code_bits: int) -> int:
    if tensor.name.endswith(_BESIDE_CODES):
        return 0
    if tensor.name.endswith(_PACKED):
        return tensor.num_bytes * 8 // code_bits
    return math.prod(tensor.shape)
