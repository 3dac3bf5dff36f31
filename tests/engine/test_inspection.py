"""What a model takes and how much of it fits: by hand, and as a started engine and its allocator have it."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager
from engine.config import CheckpointError, ConfigError, EngineConfig
from engine.inspection import Inspection, KVFit, inspect_model
from engine.page_shape import ELEMENT_BYTES, PageShape
from engine.startup import StageTimes, build_engine

ROOT = Path(__file__).resolve().parents[2]


def fit(inspection: Inspection, kv_dtype: str) -> KVFit:
    return next(one for one in inspection.fits if one.kv_dtype == kv_dtype)


def test_the_figures_of_the_default_model_are_those_of_paper_and_pencil() -> None:
    inspection = inspect_model(None, memory=1_000_000_000, lengths=(1024, 8192, 32_768))

    weights = inspection.description.weights
    # table 262,144 x 640; a layer: q 1024 x 640, k and v 256 x 640, o 640 x 1024, MLP 3 x 2048 x 640, norms
    layer = 640 * (1024 + 256 + 256 + 1024 + 3 * 2048) + 4 * 640 + 2 * 256
    assert weights.parameters == weights.active == 262_144 * 640 + 18 * layer + 640 == 268_098_176
    assert weights.num_bytes == sum(weights.bytes_by_form.values()) == 246_587_904
    assert inspection.budget.pages == 1_000_000_000 - 246_587_904
    assert inspection.max_model_len == 32_768
    half = fit(inspection, "bfloat16")
    assert half.full_token_bytes == 3 * 2 * 256 * 2
    assert half.windowed_token_bytes == 15 * 2 * 256 * 2
    assert half.page_bytes == 3 * 2 * 16 * 256 * 2 == 49_152
    assert half.num_pages == 753_412_096 // 49_152 == 15_328
    # a page of 16 positions in the full layers, five in the windowed ones, which see 512: 33 blocks at most
    pages = [1024 // 16 + 33 * 5, 8192 // 16 + 33 * 5, 32_768 // 16 + 33 * 5]
    assert half.sequence_bytes == tuple(one * 49_152 for one in pages)
    assert half.num_sequences == tuple(15_328 // one for one in pages) == (66, 22, 6)
    assert half.num_tokens == (15_328 - 33 * 5) * 16
    one_byte = fit(inspection, "int8")
    assert one_byte.page_bytes == 3 * 2 * 16 * (256 + 4)
    assert one_byte.full_token_bytes == 3 * 2 * (256 + 4)


@pytest.mark.parametrize("kv_dtype", ELEMENT_BYTES)
@pytest.mark.parametrize("model", ["tiny_llama_dir", "tiny_gemma3_dir"])
def test_an_engine_of_the_same_memory_has_as_many_pages_and_room_for_as_many_tokens(
    model: str, kv_dtype: str, request: pytest.FixtureRequest
) -> None:
    path = str(request.getfixturevalue(model))
    memory = 200_000
    config = EngineConfig(
        model=path, device="cpu", dtype="float32", kv_cache_dtype=kv_dtype, kv_cache_memory_bytes=memory
    )
    _, ready = build_engine(config, StageTimes(), on_progress=lambda _: None)

    [found] = inspect_model(path, kv_cache_memory_bytes=memory, kv_cache_dtype=kv_dtype).fits

    assert (found.page_bytes, found.num_pages) == (ready.page_bytes, ready.num_pages)
    [warning] = [one for one in ready.warnings if "hold one sequence of at most" in one] or [""]
    held = min(found.num_tokens, 2047) + 1  # the last token of a sequence needs no place
    assert (f"at most {held} tokens" in warning) == (held < 2048)


@pytest.mark.parametrize("model", ["tiny_llama_dir", "tiny_gemma3_dir"])
@pytest.mark.parametrize("length", [100, 700])
def test_as_many_sequences_as_are_told_grow_to_their_length_and_one_more_does_not(
    model: str, length: int, request: pytest.FixtureRequest
) -> None:
    path = str(request.getfixturevalue(model))
    [found] = inspect_model(path, kv_cache_memory_bytes=1_000_000, kv_cache_dtype="int8", lengths=(length,)).fits
    [count] = found.num_sequences
    spec = inspect_model(path, memory=0).description.spec

    def grow_side_by_side(num_sequences: int) -> bool:
        groups = PageShape.of(spec, 16, 1).groups
        blocks = BlockManager(groups, found.num_pages, 16, enable_prefix_caching=False)
        hashes = BlockHashes(16)
        names = [str(number) for number in range(num_sequences)]
        for tokens in range(1, length + 1):
            for name in names:
                grown = (
                    blocks.grow(name, tokens) if tokens > 1 else blocks.admit(name, blocks.match_prefix(hashes, 1), 1)
                )
                if not grown:
                    return False
                blocks.commit(name, tokens, hashes)
        return True

    assert count > 1
    assert grow_side_by_side(count)
    assert not grow_side_by_side(count + 1)


def test_without_a_memory_it_is_the_share_that_a_server_takes_here(
    tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.inspection.available_memory", lambda: 10_000_000)
    inspection = inspect_model(str(tiny_llama_dir))
    weights = inspection.description.weights.num_bytes
    assert inspection.budget.memory == 10_000_000
    assert inspection.budget.pages == int((10_000_000 - weights) * 0.4)


def test_a_memory_smaller_than_the_weights_has_no_pages(tiny_llama_dir: Path) -> None:
    inspection = inspect_model(str(tiny_llama_dir), memory=1000)
    assert {(one.num_pages, one.num_tokens, one.num_sequences) for one in inspection.fits} == {(0, 0, (0,))}


def test_lengths_end_with_the_context(tiny_llama_dir: Path) -> None:
    assert inspect_model(str(tiny_llama_dir), memory=0).lengths == (1024,)
    assert inspect_model(str(tiny_llama_dir), memory=0, max_model_len=1000).lengths == (1000,)
    with pytest.raises(ConfigError, match=r"--lengths 2049: the context is 2048 tokens"):
        inspect_model(str(tiny_llama_dir), lengths=(10, 2049))
    with pytest.raises(ConfigError, match=r"--max-model-len 4096: the model was made for at most 2048 tokens"):
        inspect_model(str(tiny_llama_dir), max_model_len=4096)
    with pytest.raises(ConfigError, match=r"--kv-cache-dtype int3: choose one of auto, float32"):
        inspect_model(str(tiny_llama_dir), kv_cache_dtype="int3")
    with pytest.raises(CheckpointError, match="neither a file, nor a directory"):
        inspect_model("no-such-model")


def test_inspecting_imports_no_torch_and_reads_no_weights(default_gguf: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from engine.inspection import inspect_model; inspect_model(None);"
        "assert 'torch' not in sys.modules;"
        "lines = Path('/proc/self/smaps').read_text().split('VmFlags'); "
        "print(sum(int(line.split()[1]) for part in lines if '.gguf' in part "
        "for line in part.splitlines() if line.startswith('Rss:')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < default_gguf.stat().st_size / 10


def test_every_kv_dtype_of_a_server_is_told(tiny_llama_dir: Path) -> None:
    from engine.config import KV_CACHE_DTYPES

    assert {"auto", *ELEMENT_BYTES} == set(KV_CACHE_DTYPES)
    sizes = [one.page_bytes for one in inspect_model(str(tiny_llama_dir), memory=0).fits]
    assert sizes == [math.prod((2, 2, 2, 16)) * row for row in (64, 32, 32, 20, 20)]


def test_a_file_whose_path_looks_like_a_hub_id_is_not_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models/config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"^models/config\.json is not a GGUF file"):
        inspect_model("models/config.json")
