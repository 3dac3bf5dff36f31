"""Weights land where they belong, from every format, and a checkpoint that does not fit is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quantization
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file

from kernels.backends import choose_backend
from models.checkpoint import resolve_checkpoint
from models.errors import CheckpointError
from models.gguf_file import GGUFFile
from models.gguf_weights import dequantized
from models.loader import load_model
from models.model import CausalLM

CPU = torch.device("cpu")
PROMPT = [256, *range(40, 80)]
Weights = dict[str, torch.Tensor]


def load(
    path: Path, dtype: torch.dtype = torch.float32, on_progress: Callable[[int, int], None] | None = None
) -> CausalLM:
    checkpoint = resolve_checkpoint(str(path))
    backend, _ = choose_backend(CPU)
    return load_model(
        checkpoint, checkpoint.read_spec(), device=CPU, dtype=dtype, backend=backend, on_progress=on_progress
    )


def values(model: CausalLM) -> Weights:
    return {name: parameter.view.clone() for name, parameter in model.parameters().items()}


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights stay plain, as on CPUs that cannot pack them, and can be read back."""
    monkeypatch.setattr("models.matrix_product._packed_weight", lambda weight: None)


@pytest.fixture
def llama_copy(tiny_llama_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_llama_dir, tmp_path / "llama"))


def rewrite(directory: Path, change: Callable[[Weights], object]) -> Path:
    weights = load_file(directory / "model.safetensors")
    change(weights)
    save_file(weights, directory / "model.safetensors")
    return directory


def write_gguf(directory: Path, path: Path, architecture: str, matrices: Quantization) -> Path:
    """The tiny checkpoint as llama.cpp stores it: its names, q and k rows of Llama interleaved, norms of Gemma + 1."""
    config = json.loads((directory / "config.json").read_text())
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if architecture == "gemma3":
        writer.add_sliding_window(config["sliding_window"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config["num_hidden_layers"])
    for hf_name, tensor in load_file(directory / "model.safetensors").items():
        array = tensor.numpy()
        if architecture == "gemma3" and "norm" in hf_name:
            array = array + 1.0
        for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if architecture == "llama" and part in hf_name:
                halves = array.reshape(config[heads], 2, config["head_dim"] // 2, -1)
                array = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
        name = names.get_name(hf_name, try_suffixes=(".weight",))
        assert name is not None
        if array.ndim == 1:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, quantize(array, matrices), raw_dtype=matrices)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.usefixtures("unpacked")
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("quantization", [Quantization.F32, Quantization.F16, Quantization.BF16, Quantization.Q8_0])
def test_a_gguf_file_gives_the_weights_of_its_hugging_face_original(
    architecture: str, quantization: Quantization, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    directory: Path = request.getfixturevalue(f"tiny_{architecture}_dir")
    ours = values(load(write_gguf(directory, tmp_path / "m.gguf", architecture, quantization)))
    originals = values(load(directory))
    assert ours.keys() == originals.keys()
    for name, original in originals.items():
        stored = original
        if "norm" not in name:
            stored = torch.from_numpy(dequantize(quantize(original.numpy(), quantization), quantization))
        assert torch.equal(ours[name], stored), name


@pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this build of torch packs nothing")
@pytest.mark.parametrize("stored_as", ["gguf", "safetensors"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_loaded_model_is_packed_and_gives_the_logits_of_plain_weights(
    architecture: str,
    stored_as: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    paged_logits: Callable[..., list[torch.Tensor]],
) -> None:
    path: Path = request.getfixturevalue(f"tiny_{architecture}_dir")
    if stored_as == "gguf":
        path = write_gguf(path, tmp_path / "m.gguf", architecture, Quantization.F32)
    packed = load(path)
    monkeypatch.setattr("models.matrix_product._packed_weight", lambda weight: None)
    plain = load(path)
    left = {name for name in plain.parameters() if "norm" in name or "embed" in name}
    assert set(packed.parameters()) == left
    table = plain.parameters()["model.embed_tokens.weight"].view
    assert packed.weight_bytes() - plain.weight_bytes() == (table.nbytes if architecture == "gemma3" else 0)
    rows = [[0, 20, 40]]
    [ours], [theirs] = (paged_logits(m, [PROMPT], rows, chunk=16, dtype=torch.float32) for m in (packed, plain))
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("quantization", [Quantization.Q8_0, Quantization.Q4_0, Quantization.Q5_0])
def test_dequantised_rows_are_those_of_the_gguf_library(quantization: Quantization) -> None:
    rows = quantize(np.random.default_rng(3).normal(size=(37, 96)).astype(np.float32), quantization)
    assert torch.equal(dequantized(rows, quantization), torch.from_numpy(dequantize(rows, quantization)))


@pytest.mark.slow
def test_the_embedding_of_the_default_model_is_that_of_the_gguf_library(default_gguf: Path) -> None:
    model = load(default_gguf)
    tensor = GGUFFile(default_gguf).tensors["token_embd.weight"]
    rows = slice(200_000, 200_100)
    expected = torch.from_numpy(dequantize(tensor.data[rows], tensor.quantization))
    assert torch.equal(model.parameters()["model.embed_tokens.weight"].view[rows], expected)
    copied = 262_144 * 640  # the tied table is packed for the head beside the rows of the embedding
    assert model.weight_bytes() == 4 * (268_098_176 + copied)


@pytest.mark.usefixtures("unpacked")
def test_shards_of_an_index_give_the_weights_of_one_file(llama_copy: Path, tiny_llama_dir: Path) -> None:
    in_two_shards(llama_copy)
    ours, expected = values(load(llama_copy)), values(load(tiny_llama_dir))
    assert all(torch.equal(ours[name], expected[name]) for name in expected)


@pytest.mark.usefixtures("unpacked")
def test_weights_are_rounded_once_to_the_model_dtype_and_norms_stay_float32(tiny_gemma3_dir: Path) -> None:
    stored = load_file(tiny_gemma3_dir / "model.safetensors")
    ours = values(load(tiny_gemma3_dir, torch.bfloat16))
    for name, tensor in ours.items():
        if "norm" in name:
            assert torch.equal(tensor, (stored[name] + 1.0).expand_as(tensor)), name
        else:
            assert torch.equal(tensor, stored[name].bfloat16()), name


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"),
            "{0}: the tensor 'model.layers.1.mlp.up_proj.weight' of shape (128, 64) is missing",
        ),
        (
            lambda weights: [weights.pop(f"model.layers.1.mlp.{name}_proj.weight") for name in ("gate", "up")],
            "{0}: the tensor 'model.layers.1.mlp.gate_proj.weight' of shape (128, 64) and 1 more is missing",
        ),
        (
            lambda weights: weights.update({"model.layers.2.mlp.up_proj.weight": torch.zeros(2, 3)}),
            "{0}/model.safetensors: the tensor 'model.layers.2.mlp.up_proj.weight' of shape (2, 3) is not part of "
            "this architecture",
        ),
        (
            lambda weights: weights.update({"model.norm.weight": torch.zeros(63)}),
            "{0}/model.safetensors: the tensor 'model.norm.weight' has the shape (63,) and should have (64,)",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_its_config_is_named(
    change: Callable[[Weights], object], problem: str, llama_copy: Path
) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(rewrite(llama_copy, change))
    assert str(caught.value) == problem.format(llama_copy)


def test_tensors_that_a_model_computes_itself_are_passed_over(llama_copy: Path) -> None:
    load(rewrite(llama_copy, lambda w: w.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)})))


def test_a_tensor_in_two_shards_is_refused(llama_copy: Path) -> None:
    (llama_copy / "model.safetensors").rename(llama_copy / "a.safetensors")
    shutil.copy(llama_copy / "a.safetensors", llama_copy / "b.safetensors")
    with pytest.raises(CheckpointError, match=r"b\.safetensors: the tensor '.*' of shape .* is there twice"):
        load(llama_copy)


def in_two_shards(directory: Path) -> Path:
    """Cut the checkpoint into two shards, and write its index."""
    weights = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    weight_map = {name: f"{'ab'[number % 2]}.safetensors" for number, name in enumerate(sorted(weights))}
    for file in ("a.safetensors", "b.safetensors"):
        save_file({name: weights[name] for name in weights if weight_map[name] == file}, directory / file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


@pytest.mark.parametrize("content", ["truncated", "header only", "pickle", "empty"])
def test_a_shard_that_cannot_be_read_is_named_before_anything_is_loaded(llama_copy: Path, content: str) -> None:
    shard = in_two_shards(llama_copy) / "b.safetensors"
    whole = shard.read_bytes()
    cut = {"truncated": whole[:-100], "header only": whole[:1000], "pickle": b"\x80\x02" + bytes(100), "empty": b""}
    shard.write_bytes(cut[content])
    seen: list[tuple[int, int]] = []
    with pytest.raises(CheckpointError, match=rf"{shard} is (truncated|too short)") as caught:
        load(llama_copy, on_progress=lambda done, total: seen.append((done, total)))
    assert ("the tensor 'model." in str(caught.value)) == (content == "truncated")
    assert seen == []


def test_an_index_that_names_a_tensor_its_shard_lacks_is_refused(llama_copy: Path) -> None:
    index = in_two_shards(llama_copy) / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    name = "model.layers.0.mlp.up_proj.weight"
    other = "b.safetensors" if weight_map[name] == "a.safetensors" else "a.safetensors"
    index.write_text(json.dumps({"weight_map": weight_map | {name: other}}))
    with pytest.raises(CheckpointError) as caught:
        load(llama_copy)
    assert str(caught.value) == f"{index} names the tensor {name!r} in {other}, which does not hold it"


def test_a_shape_that_is_wrong_names_the_shard_it_is_in(llama_copy: Path) -> None:
    directory = in_two_shards(
        rewrite(llama_copy, lambda weights: weights.update({"lm_head.weight": torch.zeros(3, 2)}))
    )
    shard = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]["lm_head.weight"]
    with pytest.raises(CheckpointError) as caught:
        load(directory)
    assert str(caught.value).startswith(
        f"{directory / shard}: the tensor 'lm_head.weight' has the shape (3, 2) and should"
    )


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.float8_e4m3fn, "F8_E4M3"), (torch.int32, "I32"), (torch.int8, "I8"), (torch.bool, "BOOL")],
)
def test_a_tensor_that_holds_no_floats_is_named(llama_copy: Path, dtype: torch.dtype, name: str) -> None:
    tensor = "model.layers.1.mlp.up_proj.weight"
    directory = rewrite(llama_copy, lambda weights: weights.update({tensor: weights[tensor].to(dtype)}))
    with pytest.raises(CheckpointError) as caught:
        load(directory)
    assert str(caught.value) == (
        f"{directory}/model.safetensors: the tensor {tensor!r} is stored as {name}, and should be one of BF16, F16, "
        "F32, F64"
    )


@pytest.mark.usefixtures("unpacked")
@pytest.mark.parametrize("chunk_elements", [1, 5000])
def test_weights_are_the_same_in_chunks_of_any_size(
    tiny_gemma3_dir: Path, monkeypatch: pytest.MonkeyPatch, chunk_elements: int
) -> None:
    expected = values(load(tiny_gemma3_dir))
    monkeypatch.setattr("models.chunks._CONVERTED_ELEMENTS", chunk_elements)
    ours = values(load(tiny_gemma3_dir))
    assert all(torch.equal(ours[name], expected[name]) for name in expected)


def test_an_extra_tensor_of_a_gguf_file_is_named(tiny_gemma3_dir: Path, tmp_path: Path) -> None:
    path = write_gguf(tiny_gemma3_dir, tmp_path / "m.gguf", "gemma3", Quantization.F16)
    path.write_bytes(path.read_bytes().replace(b"blk.3.ffn_up.weight", b"blk.3.ffn_no.weight"))
    with pytest.raises(
        CheckpointError, match=r"m\.gguf: the tensor 'blk\.3\.ffn_no\.weight' of shape \(128, 64\) is not"
    ):
        load(path)


@pytest.mark.parametrize("stored_as", ["gguf", "safetensors"])
def test_progress_grows_to_the_whole_and_threads_come_back(
    stored_as: str, tiny_llama_dir: Path, tmp_path: Path
) -> None:
    path = tiny_llama_dir
    if stored_as == "gguf":
        path = write_gguf(path, tmp_path / "m.gguf", "llama", Quantization.F16)
    seen: list[tuple[int, int]] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        load(path, on_progress=lambda done, total: seen.append((done, total)))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(seen) > 10
    assert seen[-1][0] == seen[-1][1] > 0
    assert len({total for _, total in seen}) == 1


def test_a_gguf_type_that_holds_no_weights_is_named_with_the_tensor_and_the_file(
    tiny_llama_dir: Path, tmp_path: Path
) -> None:
    file = write_gguf(tiny_llama_dir, tmp_path / "a.gguf", "llama", Quantization.Q8_0)
    content = bytearray(file.read_bytes())
    place = content.index(b"output_norm.weight") + len(b"output_norm.weight") + 12  # its dimensions are before its type
    content[place : place + 4] = Quantization.I32.to_bytes(4, "little")
    file.write_bytes(content)
    with pytest.raises(CheckpointError) as refused:
        load(file)
    assert str(refused.value) == f"{file}: the tensor 'output_norm.weight' is of the type I32, which is not supported"
