"""Which weights are kept quantised, and that a model of kept weights is the model of their values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf.constants import GGMLQuantizationType

from kernels.cpu.backend import NativeBackend
from kernels.cpu.library import NativeLibrary
from kernels.cpu.quantised_matrix import NativeKernels, QuantisedMatrix, WeightKind
from models.checkpoint import resolve_checkpoint
from models.decoder import Decoder
from models.loader import load_model
from models.model import CausalLM
from models.weight_forms import Quantization, StoredForm, WeightForms
from models.weight_place import WeightPlace

CPU = torch.device("cpu")
Q = GGMLQuantizationType


@pytest.fixture(scope="module")
def library() -> NativeLibrary:
    return NativeLibrary()


def load(path: Path, library: NativeLibrary, quantization: Quantization | None) -> CausalLM:
    checkpoint = resolve_checkpoint(str(path))
    forms = None if quantization is None else WeightForms(quantization, NativeKernels(library))
    backend = NativeBackend(library)
    return load_model(checkpoint, checkpoint.read_spec(), device=CPU, dtype=torch.float32, backend=backend, forms=forms)


@pytest.mark.parametrize(
    ("quantization", "name", "columns", "stored", "kind"),
    [
        (Quantization.STORED, "a.q_proj.weight", 640, Q.Q5_0, WeightKind.Q5_0),
        (Quantization.STORED, "a.down_proj.weight", 2048, Q.Q4_K, WeightKind.Q4_K),
        (Quantization.STORED, "a.down_proj.weight", 2048, Q.F16, None),
        (Quantization.STORED, "a.down_proj.weight", 2048, Q.Q5_K, WeightKind.Q5_K),
        (Quantization.STORED, "a.down_proj.weight", 2880, Q.MXFP4, WeightKind.MXFP4),
        (Quantization.STORED, "a.down_proj.weight", 2048, Q.IQ3_S, None),
        (Quantization.STORED, "a.q_proj.weight", 640, None, None),
        (Quantization.INT8, "a.q_proj.weight", 640, None, WeightKind.Q8_0),
        (Quantization.INT8, "a.q_proj.weight", 648, None, None),
        (Quantization.INT4, "a.q_proj.weight", 640, Q.Q8_0, WeightKind.Q4_1),
        (Quantization.INT4, "model.embed_tokens.weight", 640, None, WeightKind.Q8_0),
        (Quantization.INT4, "lm_head.weight", 640, None, WeightKind.Q8_0),
    ],
)
def test_the_kind_of_a_weight(
    library: NativeLibrary,
    quantization: Quantization,
    name: str,
    columns: int,
    stored: GGMLQuantizationType | None,
    kind: WeightKind | None,
) -> None:
    assert (
        WeightForms(quantization, NativeKernels(library)).kind(
            name, columns, None if stored is None else StoredForm(stored.name)
        )
        is kind
    )


def test_a_product_of_a_kept_and_another_tensor_is_not_kept(library: NativeLibrary, tiny_llama_dir: Path) -> None:
    # as they are before a model is filled
    checkpoint = resolve_checkpoint(str(tiny_llama_dir))
    empty = Decoder(checkpoint.read_spec(), NativeBackend(library), dtype=torch.float32, device=CPU)
    parameters = empty.parameters()
    stored = dict.fromkeys(parameters, StoredForm("Q8_0"))
    stored["model.layers.0.self_attn.k_proj.weight"] = StoredForm("F32")
    kept = WeightForms(Quantization.STORED, NativeKernels(library)).keep(parameters, stored, CPU)
    assert not any(name.startswith("model.layers.0.self_attn.") and "o_proj" not in name for name in kept)
    assert "model.layers.0.self_attn.o_proj.weight" in kept
    assert "model.layers.1.self_attn.k_proj.weight" in kept


def test_weights_that_are_kept_never_take_the_memory_of_floats(
    library: NativeLibrary, tiny_llama_dir: Path, tiny_gemma3_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    tensor = WeightPlace.tensor.fget
    assert tensor is not None
    monkeypatch.setattr(WeightPlace, "tensor", property(lambda place: taken.append(place) or tensor(place)))
    for directory in (tiny_llama_dir, tiny_gemma3_dir):
        load(directory, library, Quantization.INT8)
    assert taken == []
    load(tiny_llama_dir, library, None)
    assert len(taken) > 0


@pytest.mark.slow
def test_stored_weights_are_the_same_in_chunks_of_any_size(
    library: NativeLibrary, default_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[dict[str, QuantisedMatrix]] = []
    keep = WeightForms.keep

    def noted_keep(*arguments: Any) -> Any:
        loads.append(keep(*arguments))
        return loads[-1]

    monkeypatch.setattr(WeightForms, "keep", noted_keep)
    for elements in (1, 1 << 40):  # panels of 16 rows, and whole tensors
        monkeypatch.setattr("models.chunks._STORED_ELEMENTS", elements)
        load(default_gguf, library, Quantization.STORED)
    panels, wholes = loads
    assert len(panels) == len(wholes) > 100
    for name, matrix in wholes.items():
        rows = torch.arange(0, matrix.rows, 1 + matrix.rows // 1000)
        assert torch.equal(panels[name].unpack(rows), matrix.unpack(rows)), name


@pytest.mark.slow
def test_the_default_model_keeps_the_bits_of_its_file(library: NativeLibrary, default_gguf: Path) -> None:
    model = load(default_gguf, library, Quantization.STORED)
    # the file has 247 MB of weights; K kinds take a little more here, and the tied table is there once
    assert 245e6 < model.weight_bytes() < 250e6
