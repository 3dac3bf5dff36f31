"""Adapters of a real server: at its start and while it runs, beside each other, and gone when they are unloaded."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lora_adapters import merged_model, write_adapter

FLAGS = ("--dtype", "float32", "--num-gpu-blocks-override", "200")


@pytest.fixture(scope="module")
def adapters(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(directory / name, tiny_llama_dir, seed=seed) for seed, name in enumerate(("poet", "critic"))
    }


def text(server, model: str, prompt: str) -> str:
    body = {"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    answer = server.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    return answer.json()["choices"][0]["text"]


@pytest.fixture(scope="module")
def oracles(start_server: Callable, tiny_llama_dir: Path, adapters, tmp_path_factory) -> dict[str, str]:
    """What each adapter's merged model says to "Hello world"."""
    found = {}
    for name, adapter in adapters.items():
        merged = merged_model(tmp_path_factory.mktemp("merged") / name, tiny_llama_dir, adapter)
        server = start_server(str(merged), *FLAGS)
        found[name] = text(server, name, "Hello world")
        assert server.stop() == 0
    return found


def test_adapters_of_the_start_and_of_the_run_answer_as_their_merged_models_side_by_side(
    start_server: Callable, settled: Callable, tiny_llama_dir: Path, adapters, oracles
) -> None:
    flags = ("--served-model-name", "tiny", "--enable-lora", "--lora-modules", f"poet={adapters['poet']}")
    server = settled(start_server(str(tiny_llama_dir), *FLAGS, *flags))
    assert "adapters     poet (rank 4, 0.0 MB)" in server.log.read_text()
    base = text(server, "tiny", "Hello world")
    body = {"lora_name": "critic", "lora_path": str(adapters["critic"])}
    assert server.http.post("/v1/load_lora_adapter", json=body).status_code == 200
    models = ("tiny", "poet", "critic") * 4
    with ThreadPoolExecutor(len(models)) as pool:
        answers = list(pool.map(lambda model: text(server, model, "Hello world"), models))
    expected = {"tiny": base, **oracles}
    assert answers == [expected[model] for model in models]
    assert len(set(expected.values())) == 3

    assert server.http.post("/v1/unload_lora_adapter", json={"lora_name": "poet"}).status_code == 200
    answer = server.http.post("/v1/completions", json={"model": "poet", "prompt": "Hello", "max_tokens": 1})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    server.wait_until(lambda: "adapter 'poet' unloaded" in server.log.read_text(), "said to be unloaded")
    assert text(server, "critic", "Hello world") == oracles["critic"]
    listed = server.http.get("/v1/models").json()["data"]
    assert [(one["id"], one.get("parent")) for one in listed] == [("tiny", None), ("critic", "tiny")]
