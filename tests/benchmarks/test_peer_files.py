"""The same model in Hugging Face layout: read back it has the same shapes, the same tokens, the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from tokenizers import Tokenizer

from benchmarks import peer_files
from benchmarks.peer_files import export_command, hugging_face_config, hugging_face_weights, main, quantize_command
from models.checkpoint import resolve_checkpoint
from models.registry import spec_from_config
from server.text_parts import load_text_parts


def test_the_config_reads_back_as_the_spec_it_was_made_of(default_gguf: Path) -> None:
    spec = resolve_checkpoint(str(default_gguf)).read_spec()
    again = spec_from_config(json.loads(json.dumps(hugging_face_config(spec))))
    different = [field for field in spec.__slots__ if getattr(again, field) != getattr(spec, field)]
    assert different == ["checkpoint_dtype"]  # the file is quantised, the directory is not


def test_another_architecture_is_refused(tiny_llama_dir: Path) -> None:
    with pytest.raises(ValueError, match="only gemma3 can be written in Hugging Face layout, not llama"):
        hugging_face_config(resolve_checkpoint(str(tiny_llama_dir)).read_spec())


def test_the_tokenizer_gives_the_same_tokens_and_puts_texts_together(default_gguf: Path, tmp_path: Path) -> None:
    checkpoint = resolve_checkpoint(str(default_gguf))
    path = tmp_path / "tokenizer.json"
    peer_files.hugging_face_tokenizer(checkpoint.gguf_metadata()).save(str(path))
    tokenizer = Tokenizer.from_file(str(path))
    ours = load_text_parts(checkpoint, None).tokenizer
    for text in ("The capital of France is", "Zwölf Boxkämpfer\n\n  jagen 日本語 \U0001f980 <b>", " a\tb  c"):
        encoded = tokenizer.encode(text).ids
        assert encoded == ours.encode(text)
        assert tokenizer.decode(encoded) == text


def test_weights_have_their_names_and_norms_are_less_one() -> None:
    floats = GGMLQuantizationType.F32
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensors = [
        SimpleNamespace(name="token_embd.weight", shape=(2, 3), data=matrix, quantization=floats),
        SimpleNamespace(name="blk.4.ffn_norm.weight", shape=(2,), data=np.float32([3.5, 0.5]), quantization=floats),
        SimpleNamespace(name="rope_freqs.weight", shape=(2,), data=np.float32([1, 1]), quantization=floats),
    ]
    checkpoint = SimpleNamespace(gguf_file=SimpleNamespace(tensors={one.name: one for one in tensors}))
    spec = SimpleNamespace(architecture="gemma3", tied_embeddings=True)
    weights = hugging_face_weights(checkpoint, spec)
    norm = "model.layers.4.pre_feedforward_layernorm.weight"
    assert weights.keys() == {"model.embed_tokens.weight", norm}
    assert weights["model.embed_tokens.weight"].tolist() == matrix.tolist()
    assert weights[norm].tolist() == [2.5, -0.5]
    assert weights[norm].dtype == torch.bfloat16


def test_a_file_is_there_whole_or_not_at_all(
    tmp_path: Path, default_gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peer_files, "write_hugging_face", lambda checkpoint, directory: directory.mkdir(exist_ok=True))
    program = tmp_path / "llama-quantize"
    program.write_text("#!/bin/sh\necho $4 > $3\n[ $4 = Q8_0 ]\n")
    program.chmod(0o755)
    files = tmp_path / "files"
    files.mkdir()
    assert main([str(files), "--model", str(default_gguf), "--llama-cpp", str(tmp_path)]) == 1
    assert "llama-quantize" in capsys.readouterr().err
    assert (files / "q8_0.gguf").read_text() == "Q8_0\n"
    assert not (files / "bf16.gguf").exists()


def test_commands_of_peers_programs() -> None:
    quantize = quantize_command(Path("q"), Path("a.gguf"), Path("b"), "BF16")
    assert quantize == ["q", "--allow-requantize", "a.gguf", "b", "BF16"]
    assert export_command(Path("/ov"), Path("hf"), Path("out"), "int8")[-3:] == ["--weight-format", "int8", "out"]
