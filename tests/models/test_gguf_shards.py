"""A GGUF model in several files is read as one, whichever of them is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from models.checkpoint import Checkpoint, CheckpointFormat, resolve_checkpoint
from models.errors import CheckpointError
from models.gguf_shards import model_stem, shard_names

SHARDS = tuple(f"tiny-0000{number}-of-00003.gguf" for number in (1, 2, 3))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A directory of a model in three shards, of two tensors each, as the gguf library cuts them."""
    writer = GGUFWriter(tmp_path / "tiny.gguf", "llama", split_max_tensors=2)
    for number in range(6):
        writer.add_tensor(f"t{number}", np.full((2, 32), number, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == list(SHARDS)
    return tmp_path


def test_any_shard_or_the_directory_opens_the_whole_model(shards: Path) -> None:
    expected = Checkpoint("tiny", shards / SHARDS[0], CheckpointFormat.GGUF)
    for named in (shards, *(shards / name for name in SHARDS)):
        assert resolve_checkpoint(str(named)) == expected
    assert expected.weight_files() == tuple(shards / name for name in SHARDS)
    file = expected.gguf_file
    assert file.metadata["general.architecture"] == "llama"
    assert list(file.tensors) == [f"t{number}" for number in range(6)]
    for number, tensor in enumerate(file.tensors.values()):
        assert tensor.file.path == shards / SHARDS[number // 2]
        assert (tensor.data.view(np.float32) == number).all()
        assert tensor.data.base is not None  # a view of the map, not a copy


def test_a_missing_shard_is_named(shards: Path) -> None:
    checkpoint = resolve_checkpoint(str(shards))
    (shards / SHARDS[1]).unlink()
    for named in (shards / SHARDS[0], shards / SHARDS[2]):
        with pytest.raises(CheckpointError, match=rf"is one of 3 shards of a model, and {SHARDS[1]} is not beside it"):
            resolve_checkpoint(str(named))
    with pytest.raises(CheckpointError, match=rf"lacks {SHARDS[1]} of the 3 shards of tiny"):
        resolve_checkpoint(str(shards))
    with pytest.raises(CheckpointError, match=SHARDS[1]):
        checkpoint.gguf_metadata()


def test_a_shard_under_another_name_is_not_taken_for_the_model(shards: Path) -> None:
    path = shutil.copy(shards / SHARDS[1], shards / "model.gguf")
    with pytest.raises(CheckpointError, match=r"model\.gguf is shard 2 of 3 .* end in -00001-of-00003\.gguf"):
        resolve_checkpoint(str(path)).gguf_metadata()


def test_a_shard_that_is_another_one_than_its_name_says_is_refused(shards: Path) -> None:
    shutil.copy(shards / SHARDS[0], shards / SHARDS[2])
    with pytest.raises(CheckpointError, match=rf"{SHARDS[2]}: split\.no is 0 and should be 2, by the file's name"):
        resolve_checkpoint(str(shards)).gguf_metadata()


@pytest.mark.parametrize(
    ("tensors", "total", "problem"),
    [
        (("x", "x"), 2, r"m-00002-of-00002\.gguf has the tensor 'x', which is in \S*m-00001-of-00002\.gguf too"),
        (("x", "y"), 3, r"split\.tensors\.count is 3, and the shards hold 2 tensors"),
    ],
)
def test_shards_that_do_not_belong_together_are_refused(
    tmp_path: Path, tensors: tuple[str, str], total: int, problem: str
) -> None:
    for number, tensor in enumerate(tensors):
        writer = GGUFWriter(tmp_path / f"m-0000{number + 1}-of-00002.gguf", "llama")
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", total)
        writer.add_tensor(tensor, np.zeros((1, 32), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    with pytest.raises(CheckpointError, match=problem):
        resolve_checkpoint(str(tmp_path)).gguf_metadata()


@pytest.mark.parametrize(
    ("name", "stem", "count"),
    [
        ("m.gguf", "m", 1),
        ("m.GGUF", "m", 1),
        ("d/m-00002-of-00003.gguf", "d/m", 3),
        ("m-00000-of-00003.gguf", "m", 1),
        ("m-00004-of-00003.gguf", "m", 1),
        ("m-2-of-3.gguf", "m-2-of-3", 1),
        ("m-00001-of-99999.gguf", "m", 1),
    ],
)
def test_names_of_shards(name: str, stem: str, count: int) -> None:
    assert model_stem(name) == stem
    names = shard_names(name)
    assert (len(names), name in names) == (count, True)
