"""From choices to pages: what --kv-cache-dtype makes of the pool."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine import choices
from engine.config import ConfigError, EngineConfig
from engine.messages import EngineReady
from engine.startup import StageTimes, build_engine


def start(model: Path, **choices: object) -> EngineReady:
    config = EngineConfig(model=str(model), device="cpu", max_model_len=512, kv_cache_memory_bytes=3_000_000, **choices)
    _, ready = build_engine(config, StageTimes(), on_progress=lambda _: None)
    return ready


@pytest.mark.parametrize(
    ("chosen", "kv_dtype", "element_bytes", "scale_bytes"),
    [("auto", "bfloat16", 2, 0), ("float32", "float32", 4, 0), ("int8", "int8", 1, 4), ("fp8", "fp8_e4m3", 1, 4)],
)
def test_the_budget_is_cut_into_pages_of_the_chosen_dtype(
    default_gguf: Path, chosen: str, kv_dtype: str, element_bytes: int, scale_bytes: int
) -> None:
    ready = start(default_gguf, dtype="float32", kv_cache_dtype=chosen)
    page_bytes = 2 * 3 * 16 * (256 * element_bytes + scale_bytes)
    assert (ready.dtype, ready.kv_dtype, ready.page_bytes) == ("float32", kv_dtype, page_bytes)
    assert ready.num_pages == 3_000_000 // page_bytes
    assert ready.kv_bytes == ready.num_pages * page_bytes


@pytest.mark.parametrize(
    ("choices", "kv_dtype"),
    [
        ({"quantization": "auto"}, "float32"),  # of a directory of floats
        ({"quantization": "none"}, "float32"),
        ({"quantization": "int8"}, "bfloat16"),
        ({"quantization": "int4"}, "bfloat16"),
        ({"quantization": "int8", "kv_cache_dtype": "float32"}, "float32"),
    ],
)
def test_pages_are_bfloat16_by_themselves_beside_quantised_weights_only(
    tiny_llama_dir: Path, choices: dict[str, str], kv_dtype: str
) -> None:
    assert start(tiny_llama_dir, dtype="float32", **choices).kv_dtype == kv_dtype


def test_pages_beside_weights_of_floats_are_what_is_computed_with(default_gguf: Path) -> None:
    assert start(default_gguf, quantization="none", dtype="bfloat16").kv_dtype == "bfloat16"
    assert start(default_gguf, quantization="none", dtype="float16").kv_dtype == "float16"
    assert start(default_gguf, dtype="float16").kv_dtype == "float16"


def test_the_form_that_weights_are_kept_in_is_told(default_gguf: Path, tiny_llama_dir: Path) -> None:
    own_bits = "in the file's own bits (Q4_K, Q5_0, Q6_K, Q8_0)"
    assert start(default_gguf).weight_form == own_bits
    assert start(default_gguf, quantization="none", dtype="bfloat16").weight_form == "bfloat16"
    assert start(tiny_llama_dir, quantization="int4").weight_form == "int4"
    assert start(tiny_llama_dir, quantization="auto", dtype="float32").weight_form == "float32"


def test_a_pool_in_which_no_token_fits_is_a_config_error(default_gguf: Path) -> None:
    with pytest.raises(ConfigError, match=r"5 KV pages hold no request at all: one token takes 6 of this model's"):
        start(default_gguf, num_gpu_blocks_override=5)
    assert start(default_gguf, num_gpu_blocks_override=6).num_pages == 6


@pytest.mark.parametrize(
    ("settings", "num_bytes"),  # 110,528 parameters, in the file in float32
    [
        ({"dtype": "float32"}, 442_112),
        ({"dtype": "bfloat16"}, 221_056),
        ({"dtype": "bfloat16", "quantization": "none"}, 221_056),
        ({"quantization": "int8"}, 110_528),
        ({"quantization": "int4"}, 55_264),
    ],
)
def test_weights_larger_than_the_memory_left_are_refused_before_they_are_read(
    tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], num_bytes: int
) -> None:
    monkeypatch.setattr("engine.weight_memory.available_memory", lambda: num_bytes)
    start(tiny_llama_dir, **settings)
    monkeypatch.setattr("engine.weight_memory.available_memory", lambda: num_bytes - 1)
    monkeypatch.setattr("engine.startup.load_model", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(
        ConfigError, match=r"^the weights take at least 0\.00 GB, more than the 0\.00 GB of memory left: "
    ):
        start(tiny_llama_dir, **settings)


def test_memory_that_the_host_does_not_give_is_one_sentence(
    tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.setup.InputBatch", lambda *_, **__: torch.empty(1 << 60, dtype=torch.uint8))
    with pytest.raises(
        ConfigError, match=r"^out of memory while making block tables and buffers of steps: try a lower"
    ):
        start(tiny_llama_dir)


def test_a_device_without_pages_of_the_dtype_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(dtype: torch.dtype, device: torch.device) -> None:
        raise ValueError(f"no {dtype} on {device}")

    monkeypatch.setattr(choices, "check_page_dtype", refuse)
    with pytest.raises(ConfigError, match=r"--kv-cache-dtype fp8_e4m3: no torch\.float8_e4m3fn on cpu"):
        choices._choose_kv_dtype("fp8", torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("nonsense", ["int4", "fp8_e5m2", "", "float8_e4m3fn"])
def test_a_dtype_that_is_none_is_a_config_error(nonsense: str) -> None:
    with pytest.raises(ConfigError, match=r"--kv-cache-dtype .*: choose one of auto, .*, int8, fp8_e4m3"):
        EngineConfig(model="m", kv_cache_dtype=nonsense).validate()


def test_a_step_smaller_than_the_streams_that_may_run_is_a_warning(tiny_llama_dir: Path) -> None:
    def warnings(max_num_batched_tokens: int) -> list[str]:
        config = EngineConfig(
            model=str(tiny_llama_dir), max_num_seqs=8, max_num_batched_tokens=max_num_batched_tokens, max_model_len=64
        )
        return build_engine(config, StageTimes(), lambda progress: None)[1].warnings

    assert warnings(8) == []
    (warning,) = warnings(7)
    assert warning.startswith("steps of --max-num-batched-tokens 7 are full when as many streams run")
