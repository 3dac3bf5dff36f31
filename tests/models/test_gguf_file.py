"""The GGUF reader: exact values from well-formed files, one clear GGUFError from every other kind."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.gguf_file import GGUFError, GGUFFile


@pytest.fixture(scope="module")
def small_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with every kind of metadata and three tensors, written by the gguf library."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("answer", 42)
    writer.add_int32("below_zero", -7)
    writer.add_uint64("large", 2**40)
    writer.add_float32("third", 0.25)
    writer.add_bool("yes", True)
    writer.add_string("greeting", "héllo ▁")
    writer.add_array("words", ["a", "", "▁bc"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("scores", [0.5, -1.5])
    writer.add_array("flags", [True, False])
    writer.add_tensor("plain", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("half", np.arange(4, dtype=np.float16))
    rows = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
    quantized = gguf.quants.quantize(rows, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("packed", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def header(num_tensors: int, num_keys: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys)


def refusal(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(GGUFError) as caught:
        GGUFFile(path)
    return str(caught.value).removeprefix(f"{path} ")


def test_every_metadata_type_comes_back_as_a_plain_python_value(small_gguf: Path) -> None:
    metadata = GGUFFile(small_gguf).metadata
    assert dict(metadata) == {
        "general.architecture": "llama",
        "answer": 42,
        "below_zero": -7,
        "large": 2**40,
        "third": 0.25,
        "yes": True,
        "greeting": "héllo ▁",
        "words": ["a", "", "▁bc"],
        "numbers": [1, -2, 3],
        "scores": [0.5, -1.5],
        "flags": [True, False],
    }
    assert metadata["yes"] is True
    assert metadata["numbers"] is metadata["numbers"]


def test_tensors_have_torch_shapes_and_their_own_bytes(small_gguf: Path) -> None:
    tensors = GGUFFile(small_gguf).tensors
    assert list(tensors) == ["plain", "half", "packed"]
    assert tensors["plain"].shape == (2, 3)
    assert tensors["plain"].data.view("<f4").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors["half"].data.view("<f2").tolist() == [0, 1, 2, 3]
    packed = tensors["packed"]
    assert packed.shape == (2, 64)
    assert packed.quantization is gguf.GGMLQuantizationType.Q8_0
    rows = gguf.quants.dequantize(packed.data, packed.quantization)
    np.testing.assert_allclose(rows.ravel(), np.linspace(-1, 1, 128), atol=0.01)


def test_every_truncation_of_a_file_is_refused(small_gguf: Path, tmp_path: Path) -> None:
    content = small_gguf.read_bytes()
    packed = GGUFFile(small_gguf).tensors["packed"].data.tobytes()
    last_byte = content.rindex(packed) + len(packed)
    for length in range(last_byte):
        refusal(tmp_path, content[:length])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 700), value=st.integers(0, 255))
def test_a_damaged_byte_costs_a_gguf_error_at_worst(
    small_gguf: Path, tmp_path: Path, position: int, value: int
) -> None:
    content = bytearray(small_gguf.read_bytes())
    content[position % len(content)] = value
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    try:
        file = GGUFFile(path)
        dict(file.metadata)
    except GGUFError:
        return
    for tensor in file.tensors.values():
        assert tensor.data.nbytes <= len(content)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is too short to be a GGUF file"),
        (b"PK\x03\x04" + bytes(40), "is not a GGUF file"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is a big-endian GGUF file"),
        (header(0, 0, version=1), "has GGUF version 1; supported versions are 2 and 3"),
        (header(0, 2**60), "is truncated or malformed"),
        (header(2**60, 0), "is truncated or malformed"),
        (header(0, 1) + struct.pack("<Q", 2**63) + bytes(20), "is truncated or malformed"),
        (header(0, 1) + string("k") + struct.pack("<IIQ", 9, 8, 2**61), "is truncated or malformed"),
        (header(0, 1) + string("k") + struct.pack("<IIQQ", 9, 8, 1, 2**64 - 1), "is truncated or malformed"),
        (header(0, 1) + string("k") + struct.pack("<IIQQQ", 9, 8, 2, 2**64 - 1, 0), "an array of strings runs past"),
        (header(0, 1) + string("k") + struct.pack("<IIQ", 9, 5, 2**62), "is truncated or malformed"),
        (header(0, 1) + string("k") + struct.pack("<IIQ", 9, 9, 1), "has an array of arrays for metadata key 'k'"),
        (header(0, 1) + string("k") + struct.pack("<IQ", 77, 0), "has the unknown value type 77 for metadata key 'k'"),
        (header(0, 2) + 2 * (string("k") + struct.pack("<II", 4, 1)), "has the metadata key 'k' twice"),
        (
            header(0, 1) + string("general.alignment") + struct.pack("<II", 4, 0),
            "has general.alignment 0, which is not a power of two",
        ),
    ],
)
def test_a_malformed_header_is_named(tmp_path: Path, content: bytes, problem: str) -> None:
    assert problem in refusal(tmp_path, content)


@pytest.mark.parametrize(
    ("dimensions", "kind", "offset", "problem"),
    [
        ((), 0, 0, "has 0 dimensions for tensor 't'"),
        ((1,) * 5, 0, 0, "has 5 dimensions for tensor 't'"),
        ((0, 4), 0, 0, "has an empty tensor 't' of shape (4, 0)"),
        ((2**40, 2**40), 0, 0, "is truncated: tensor 't' ends at byte"),
        ((4,), 0, 2**40, "is truncated: tensor 't' ends at byte"),
        ((4,), 0, 1, "has tensor 't' at offset 1, which is not a multiple of 32"),
        ((4,), 999, 0, "has the unknown type 999 for tensor 't'"),
        ((33,), 8, 0, "has rows of 33 elements in tensor 't'"),
    ],
)
def test_a_malformed_tensor_is_named(
    tmp_path: Path, dimensions: tuple[int, ...], kind: int, offset: int, problem: str
) -> None:
    entry = string("t") + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset)
    assert refusal(tmp_path, header(1, 0) + entry + bytes(64)).startswith(problem)


def test_a_string_that_is_not_utf8_is_refused_when_read(tmp_path: Path) -> None:
    path = tmp_path / "latin1.gguf"
    path.write_bytes(header(0, 1) + string("k") + struct.pack("<IQ", 8, 2) + b"\xff\xfe")
    metadata = GGUFFile(path).metadata
    with pytest.raises(GGUFError, match="not UTF-8"):
        metadata["k"]


def test_a_missing_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=r"nothing\.gguf cannot be opened: No such file or directory"):
        GGUFFile(tmp_path / "nothing.gguf")


@pytest.mark.alone
def test_the_default_model_opens_without_decoding_its_vocabulary(default_gguf: Path) -> None:
    started = time.perf_counter()
    file = GGUFFile(default_gguf)
    opened = time.perf_counter()
    tokens = file.metadata["tokenizer.ggml.tokens"]
    read = time.perf_counter()
    assert isinstance(tokens, list)
    assert len(tokens) == 262_144
    assert tokens[:3] == ["<pad>", "<eos>", "<bos>"]
    assert file.tensors["token_embd.weight"].shape == (262_144, 640)
    assert opened - started < 1.0  # measured 0.03 s; a reader that decodes as it opens takes 10 s
    assert read - opened < 2.0  # measured 0.1 s
