"""A model whose packed weights come from a file is the model that they were packed for, and no other."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file, save_file

from kernels.cpu.backend import NativeBackend
from kernels.cpu.library import NativeLibrary
from kernels.cpu.quantised_matrix import NativeKernels, QuantisedMatrix
from models import mapped_file, packed_weights
from models.checkpoint import resolve_checkpoint
from models.loader import load_model
from models.matrix_product import MatrixProduct
from models.model import CausalLM
from models.packed_file import PackedFile, PackedFileWriter
from models.packed_weights import PackedWeights
from models.weight_forms import Quantization, WeightForms
from tests.models.codes.test_coded_checkpoints import FORMATS, ORDERED, coded_copy
from tests.models.families.gguf_writer import GGUFForm, write_gguf

CPU = torch.device("cpu")
Q8_0 = GGMLQuantizationType.Q8_0
PROMPTS = [[256, *range(40, 80)], [256, 9, 8, 7]]


@pytest.fixture(autouse=True)
def small_models_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_weights, "LEAST_BYTES", 0)


@pytest.fixture
def model(tiny_llama_dir: Path, tmp_path: Path) -> Path:
    """A checkpoint that a test may change."""
    return Path(shutil.copytree(tiny_llama_dir, tmp_path / "model"))


def load(path: Path, quantization: Quantization, cache: Path) -> tuple[CausalLM, PackedWeights]:
    checkpoint, library = resolve_checkpoint(str(path)), NativeLibrary()
    forms = WeightForms(quantization, NativeKernels(library))
    spec, backend = checkpoint.read_spec(), NativeBackend(library)
    packed = PackedWeights.of(checkpoint, spec, forms, cache)
    model = load_model(checkpoint, spec, device=CPU, dtype=torch.float32, backend=backend, forms=forms, packed=packed)
    return model, packed


def keep(packed: PackedWeights) -> None:
    assert packed.should_be_kept
    writer = packed.writer()
    while writer.advance():
        pass


def logits_of(model: CausalLM, paged_logits: Callable[..., Any]) -> torch.Tensor:
    rows = [list(range(len(prompt))) for prompt in PROMPTS]
    return torch.cat(paged_logits(model, PROMPTS, rows, chunk=16, dtype=torch.float32))


def refuse(*arguments: object) -> None:
    raise AssertionError("a weight was packed again")


@pytest.mark.usefixtures("single_thread")
@pytest.mark.parametrize("source", ["int8", "int4", "gguf", "gptq", "gptq in another order", "fp8"])
def test_a_second_start_packs_nothing_and_computes_the_same(
    source: str, model: Path, tmp_path: Path, paged_logits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantization = Quantization(source) if source in ("int8", "int4") else Quantization.STORED
    if source == "gguf":
        model = write_gguf(model, tmp_path / "model.gguf", GGUFForm("llama"), quantization=Q8_0)
    elif source == "gptq in another order":
        model, _ = coded_copy(model, tmp_path, FORMATS["gptq"][0], ORDERED)
    elif quantization is Quantization.STORED:
        name = {"gptq": "gptq", "fp8": "compressed-tensors fp8"}[source]
        model, _ = coded_copy(model, tmp_path, *FORMATS[name])
    first, packed = load(model, quantization, tmp_path / "packed")
    assert not packed.are_there
    assert packed.nbytes > 0
    keep(packed)
    for how in ("pack_stored", "pack_floats", "pack_codes"):
        monkeypatch.setattr(QuantisedMatrix, how, refuse)
    second, again = load(model, quantization, tmp_path / "packed")
    assert again.are_there
    assert not again.should_be_kept
    assert again.nbytes == packed.nbytes
    assert second.weight_bytes() == first.weight_bytes()
    assert torch.equal(logits_of(second, paged_logits), logits_of(first, paged_logits))


def test_a_product_hears_that_its_weights_are_there_wherever_they_come_from(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = []
    monkeypatch.setattr(MatrixProduct, "pack", lambda product: heard.append(product))
    _, packed = load(model, Quantization.INT8, tmp_path / "packed")
    in_the_first_start = len(heard)
    assert in_the_first_start > 0
    keep(packed)
    assert load(model, Quantization.INT8, tmp_path / "packed")[1].are_there
    assert len(heard) == 2 * in_the_first_start


def test_weights_of_other_forms_lie_in_other_files(model: Path, tmp_path: Path) -> None:
    for quantization in (Quantization.INT8, Quantization.INT4):
        _, packed = load(model, quantization, tmp_path / "packed")
        assert not packed.are_there
        keep(packed)
    for quantization in (Quantization.INT8, Quantization.INT4):
        assert load(model, quantization, tmp_path / "packed")[1].are_there


def weights_with_the_same_size_and_time(model: Path) -> None:
    path = resolve_checkpoint(str(model)).weight_files()[0]
    content, stat = bytearray(path.read_bytes()), path.stat()
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def another_description(model: Path) -> None:
    config = model / "config.json"
    content = json.loads(config.read_text())
    config.write_text(json.dumps({**content, "rms_norm_eps": 2 * content["rms_norm_eps"]}))


def other_code(model: Path) -> None:
    packed_weights._code_digest.cache_clear()
    packed_weights._CODE = (*packed_weights._CODE, "engine")


@pytest.mark.parametrize("change", [weights_with_the_same_size_and_time, another_description, other_code])
def test_a_change_of_what_made_them_packs_anew_in_the_same_place(
    change: Callable[[Path], None], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_weights, "_CODE", packed_weights._CODE)
    _, packed = load(model, Quantization.INT8, tmp_path / "packed")
    keep(packed)
    assert load(model, Quantization.INT8, tmp_path / "packed")[1].are_there
    try:
        change(model)
        _, again = load(model, Quantization.INT8, tmp_path / "packed")
        assert not again.are_there
        keep(again)
        assert load(model, Quantization.INT8, tmp_path / "packed")[1].are_there
        assert [one.name for one in (tmp_path / "packed").iterdir()] == [packed.path.name]
    finally:
        packed_weights._code_digest.cache_clear()


@pytest.mark.usefixtures("single_thread")
@pytest.mark.parametrize("wrong", ["one size", "one less", "one more"])
def test_a_file_of_other_matrices_is_not_used_and_not_written_to(
    wrong: str, model: Path, tmp_path: Path, paged_logits: Any
) -> None:
    first, packed = load(model, Quantization.INT8, tmp_path / "packed")
    pieces = [torch.full_like(piece, 7) for piece in packed._taken]
    if wrong == "one size":
        pieces[3] = torch.full((len(pieces[3]) + 64,), 7, dtype=torch.uint8)
    elif wrong == "one less":
        del pieces[-1]
    else:
        pieces.append(pieces[0])
    writer = PackedFileWriter(packed.path, packed._key, pieces)
    while writer.advance():
        pass
    second, again = load(model, Quantization.INT8, tmp_path / "packed")
    assert not again.are_there
    assert torch.equal(logits_of(second, paged_logits), logits_of(first, paged_logits))
    file = PackedFile.open(packed.path, packed._key)
    assert file is not None
    assert all(int((piece != 7).sum()) == 0 for piece in file.pieces)
    keep(again)
    assert load(model, Quantization.INT8, tmp_path / "packed")[1].are_there


def test_files_that_no_start_has_used_for_a_month_make_room(model: Path, tiny_llama_dir: Path, tmp_path: Path) -> None:
    cache = tmp_path / "packed"
    for name in ("old", "used"):
        keep(load(Path(shutil.copytree(tiny_llama_dir, tmp_path / name)), Quantization.INT8, cache)[1])
    (cache / "stranger.packed").write_text("not ours")
    (cache / ".left.packed").write_text("of a writer that was killed")
    (cache / "notes").write_text("not packed")
    before = time.time() - packed_weights.UNUSED_SECONDS - 60
    for file in cache.iterdir():
        os.utime(file, (before, before))
    (cache / "young.packed").write_text("[")
    assert load(tmp_path / "used", Quantization.INT8, cache)[1].are_there
    keep(load(model, Quantization.INT8, cache)[1])
    left = sorted(one.name.partition("-")[0] for one in cache.iterdir())
    assert left == ["model", "notes", "used", "young.packed"]


def test_nothing_is_kept_that_takes_much_of_the_disk_or_is_packed_at_once(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, packed = load(model, Quantization.INT8, tmp_path / "packed")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=packed.nbytes * 10 - 1))
    with pytest.raises(OSError, match="more than a tenth of what the disk has free"):
        packed.writer()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=packed.nbytes * 10))
    packed.writer().close()
    for least, is_kept in ((packed.nbytes + 1, False), (packed.nbytes, True)):
        monkeypatch.setattr(packed_weights, "LEAST_BYTES", least)
        assert packed.should_be_kept is is_kept


def replaced_by_rename(model: Path, other: Path) -> None:
    for file in other.iterdir():
        if file.suffix in (".safetensors", ".gguf"):
            os.replace(file, model / file.name)


@pytest.mark.parametrize("is_gguf", [False, True])
def test_a_model_that_takes_anothers_place_during_a_start_is_not_taken_for_it(
    is_gguf: bool, model: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(model, tmp_path / "other"))
    weights = load_file(other / "model.safetensors")
    save_file({name: one * 2 for name, one in weights.items()}, other / "model.safetensors")
    if is_gguf:
        for directory in (model, other):
            write_gguf(directory, directory / "m.gguf", GGUFForm("llama"), quantization=Q8_0)
            (directory / "model.safetensors").unlink()
    quantization = Quantization.STORED if is_gguf else Quantization.INT8
    path = model / "m.gguf" if is_gguf else model
    checkpoint, library = resolve_checkpoint(str(path)), NativeLibrary()
    forms, spec = WeightForms(quantization, NativeKernels(library)), checkpoint.read_spec()
    checkpoint.mapped_files()
    replaced_by_rename(model, other)  # now that they are open
    packed = PackedWeights.of(checkpoint, spec, forms, tmp_path / "packed")
    load_model(
        checkpoint,
        spec,
        device=CPU,
        dtype=torch.float32,
        backend=NativeBackend(library),
        forms=forms,
        packed=packed,
    )
    keep(packed)
    _, again = load(path, quantization, tmp_path / "packed")
    assert not again.are_there
    assert not all(torch.equal(*pair) for pair in zip(again._taken, packed._taken, strict=True))


@pytest.mark.parametrize(("time_ns", "is_local"), [(0, True), (1_700_000_000_000_000_000, True), (1, False)])
def test_images_whose_files_all_have_the_same_times_are_told_apart(
    time_ns: int, is_local: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timeless(file: int) -> SimpleNamespace:
        about = stat(file)
        times = {"st_mtime_ns": time_ns, "st_ctime_ns": time_ns}
        return SimpleNamespace(st_size=about.st_size, st_mode=about.st_mode, st_uid=about.st_uid, **times)

    stat = os.fstat
    monkeypatch.setattr(os, "fstat", timeless)
    monkeypatch.setattr(mapped_file, "_SAMPLES", 2)
    keep(load(model, Quantization.INT8, tmp_path / "packed")[1])
    assert load(model, Quantization.INT8, tmp_path / "packed")[1].are_there
    path = model / "model.safetensors"
    content = bytearray(path.read_bytes())
    if is_local:  # where no sample is taken
        content[len(content) // 4] ^= 1
        path.write_bytes(content)
    else:
        save_file({name: one * 2 for name, one in load_file(path).items()}, path)
    assert not load(model, Quantization.INT8, tmp_path / "packed")[1].are_there


def test_users_of_one_directory_have_files_of_their_own(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, packed = load(model, Quantization.INT8, tmp_path / "packed")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert load(model, Quantization.INT8, tmp_path / "packed")[1].path != packed.path


def test_a_path_that_is_no_text_is_shown_all_the_same(model: Path, tmp_path: Path) -> None:
    directory = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    _, packed = load(model, Quantization.INT8, directory)
    keep(packed)
    _, again = load(model, Quantization.INT8, directory)
    assert again.are_there
    assert again.shown_path == f"{tmp_path}/\ufffd/{packed.path.name}"


def test_only_what_is_mapped_is_the_systems_file_cache(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, packed = load(model, Quantization.INT8, tmp_path / "packed")
    assert packed.mapped_bytes == 0
    keep(packed)
    for is_mapped in (True, False):
        _, again = load(model, Quantization.INT8, tmp_path / "packed")
        assert again._file is not None
        again._file.is_mapped = is_mapped
        assert again.mapped_bytes == (packed.nbytes if is_mapped else 0)
