"""Safetensors files as the library writes them, and damaged ones."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from models.safetensors_file import SafetensorsFile, SafetensorsFileError

TENSORS = {
    "b": torch.arange(6, dtype=torch.bfloat16).view(2, 3),
    "a": torch.arange(4, dtype=torch.float32),
    "codes": torch.arange(8, dtype=torch.int32).view(2, 4),
    "f8": torch.arange(4).to(torch.float8_e4m3fn),
    "scalar": torch.tensor(7, dtype=torch.int64),
    "empty": torch.empty(0, 5, dtype=torch.float16),
}


def test_tensors_are_what_was_written(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "m.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "m.safetensors")
    dtypes = {"BF16": torch.bfloat16, "F32": torch.float32, "I32": torch.int32, "F8_E4M3": torch.float8_e4m3fn,
              "I64": torch.int64, "F16": torch.float16}  # fmt: skip
    assert file.tensors.keys() == TENSORS.keys()
    for name, tensor in file.tensors.items():
        values = torch.from_numpy(tensor.data).view(dtypes[tensor.dtype]).view(tensor.shape)
        assert values.dtype == TENSORS[name].dtype
        assert torch.equal(values.double(), TENSORS[name].double())
        assert tensor.file.path == tmp_path / "m.safetensors"


def resident_kib(path: Path) -> int:
    """What of the maps of ``path`` is in this process's memory."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def test_memory_that_was_read_is_given_back_and_reads_the_same_again(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    values = torch.arange(1 << 20, dtype=torch.float32)
    save_file({"x": values, "y": values + 1}, path)
    x = SafetensorsFile(path).tensors["x"]
    before = resident_kib(path)
    data = x.data
    assert data.view(np.float32).sum(dtype=np.float64) == sum(range(1 << 20))
    assert resident_kib(path) - before > 4000
    x.file.release(data)
    assert resident_kib(path) - before < 400
    assert np.array_equal(data.view(np.float32), values.numpy())


def write(path: Path, header: object, body: bytes = bytes(64)) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + body)
    return path


def entry(dtype: object = "F32", shape: object = (2, 2), offsets: object = (0, 16)) -> dict[str, object]:
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b"not json", "is not a safetensors file: its header is no JSON object"),
        (b"[" * 100_000, "is not a safetensors file"),
        (b"[]", "is not a safetensors file"),
        ({"x": 1}, "has no dtype, shape and data_offsets for the tensor 'x'"),
        (entry(offsets=[0]), "has no dtype, shape and data_offsets for the tensor 'x'"),
        (entry(dtype="F3"), "has the unknown dtype 'F3' for the tensor 'x'"),
        (entry(shape=[2, -2]), r"has the shape \[2, -2\] for the tensor 'x'"),
        (entry(shape=[2, "2"]), "has the shape .* for the tensor 'x'"),
        (entry(offsets=[0, 12]), r"has 12 bytes for the tensor 'x', which takes 16: F32 of shape \(2, 2\)"),
        (entry(offsets=[-16, 0]), "has 16 bytes for the tensor 'x'"),
        (entry(offsets=[16, 0]), "has -16 bytes for the tensor 'x'"),
        (entry(shape=[1 << 62, 4], offsets=[0, 1 << 66]), "is truncated: the tensor 'x' ends at byte"),
        (entry(offsets=[60, 76]), "is truncated: the tensor 'x' ends at byte [0-9]+, and the file has [0-9]+"),
    ],
)
def test_a_damaged_header_is_one_sentence_that_names_file_and_tensor(
    tmp_path: Path, header: object, problem: str
) -> None:
    path = write(tmp_path / "m.safetensors", header)
    with pytest.raises(SafetensorsFileError, match=rf"{path} {problem}") as caught:
        SafetensorsFile(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"1234567", b"GGUF" + bytes(100), b"\xff" * 8])
def test_what_is_no_safetensors_file_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(SafetensorsFileError, match=r"safetensors file"):
        SafetensorsFile(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SafetensorsFileError, match=r"gone\.safetensors cannot be opened: No such file"):
        SafetensorsFile(tmp_path / "gone.safetensors")


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file(TENSORS, path)
    whole = path.read_bytes()
    for length in (0, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(SafetensorsFileError):
            SafetensorsFile(path)
