"""What a server is configured to reaches the description of its model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from engine.choices import Choices
from engine.config import ConfigError, EngineConfig


def with_rope(source: Path, directory: Path, rope: dict[str, object]) -> str:
    """The checkpoint of ``source`` with another rope."""
    shutil.copytree(source, directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"rope_scaling": rope}))
    return str(directory)


@pytest.mark.parametrize(("max_model_len", "is_short"), [(128, True), (129, False), (None, False)])
def test_longrope_has_the_factors_of_the_longest_context_that_the_server_takes(
    max_model_len: int | None, is_short: bool, tiny_llama_dir: Path, tmp_path: Path
) -> None:
    short, long = [1.0 + i / 8 for i in range(8)], [2.0 + i for i in range(8)]
    rope = {"type": "longrope", "short_factor": short, "long_factor": long, "original_max_position_embeddings": 128}
    model = with_rope(tiny_llama_dir, tmp_path / "model", rope)
    choices = Choices.of(EngineConfig(model=model, device="cpu", max_model_len=max_model_len))
    assert choices.max_model_len == (max_model_len or 2048)
    for layer in choices.spec.layers:
        assert layer.rope is not None
        assert list(layer.rope.long_factors or layer.rope.frequency_factors) == (short if is_short else long)


def test_a_config_that_adds_yarn_may_be_served_to_the_length_that_this_gives(
    tiny_llama_dir: Path, tmp_path: Path
) -> None:
    rope = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    model = with_rope(tiny_llama_dir, tmp_path / "model", rope)
    assert Choices.of(EngineConfig(model=model, device="cpu")).max_model_len == 8192
    with pytest.raises(ConfigError, match="at most 8192 tokens"):
        Choices.of(EngineConfig(model=model, device="cpu", max_model_len=8193))
