"""From a Checkpoint to a CausalLM with its weights in place.

Knows which format is read by what, not families: a model says which parameters it has, and each tensor of the
checkpoint goes straight into its place with one cast. Invariants: when `load_model` returns, every parameter was
written exactly once; files are read a few megabytes at a time, so that neither a copy nor a map of the checkpoint takes
memory beside the model; a weight is packed as soon as it is filled, so that two forms of it exist for one weight at a
time (or per thread, of a GGUF file).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernels.attention import AttentionBackend
from models.checkpoint import Checkpoint, CheckpointFormat
from models.codes.coded_tensors import CodedTensors
from models.decoder import Decoder
from models.errors import CheckpointError
from models.gguf_weights import load_gguf
from models.model import CausalLM
from models.packed_weights import PackedWeights
from models.places import Places
from models.registry import family_of
from models.safetensors_weights import load_safetensors
from models.spec import ModelSpec
from models.tensor_names import TensorNames
from models.weight_forms import StoredForm, WeightForms

Progress = Callable[[int, int], None]


def load_model(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    *,
    device: torch.device,
    dtype: torch.dtype,
    backend: AttentionBackend,
    on_progress: Progress | None = None,
    forms: WeightForms | None = None,
    packed: PackedWeights | None = None,
) -> CausalLM:
    """Build the model of ``spec`` and fill it from ``checkpoint``.

    Weights of matrix products for which ``forms`` has a kind are kept so; all others become ``dtype``. Those that are
    kept lie in ``packed``, and are not read again where that has them.
    ``on_progress`` hears of stored bytes (done, total). Raises CheckpointError that names the tensor and the file when
    a tensor is missing, unknown, of another shape, or of a type that cannot be read.
    """
    model = Decoder(spec, backend, dtype=dtype, device=device)
    parameters = model.parameters()
    if packed is not None and forms is not None:
        forms.kernels.lay_into(packed)
    kept = {} if forms is None else forms.keep(parameters, stored_forms(checkpoint, spec), device)
    places = Places(
        spec,
        _names(checkpoint, spec),
        parameters,
        kept,
        checkpoint.path,
        keeps_stored=forms is not None and forms.keeps_stored,
        are_packed=packed is not None and packed.are_there,
    )
    del parameters  # whoever holds one holds the memory of its floats, also once they are packed
    report = on_progress or (lambda done, total: None)
    if checkpoint.format is CheckpointFormat.GGUF:
        load_gguf(checkpoint.gguf_file.tensors, places, report)
    else:
        load_safetensors(checkpoint.safetensors_files, places, report, spec.codes)
    places.require_all_filled()
    return model


def stored_forms(checkpoint: Checkpoint, spec: ModelSpec) -> dict[str, StoredForm]:
    """How the checkpoint stores each parameter that it does not store as plain floats, or that a GGUF file stores."""
    names = _names(checkpoint, spec)
    if checkpoint.format is CheckpointFormat.GGUF:
        stored = {name: StoredForm(one.quantization.name) for name, one in checkpoint.gguf_file.tensors.items()}
    elif spec.codes is not None:
        coded = CodedTensors(checkpoint.safetensors_files, spec.codes)
        stored = {f"{name}.weight": coded.form(name) for name in coded.names}
    else:
        return {}
    return {placement.name: form for name, form in stored.items() for placement in names.placements(name, spec) or ()}


def _names(checkpoint: Checkpoint, spec: ModelSpec) -> TensorNames:
    family = family_of(spec)
    if checkpoint.format is not CheckpointFormat.GGUF:
        return family.names
    if family.gguf_names is None:
        raise CheckpointError(f"{checkpoint.path}: GGUF files of {family.name} are not supported")
    return family.gguf_names
