"""--deterministic on CPUs: the same bits of logits whatever runs beside a request and however its prompt is cut."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from engine.choices import _limits_of_determinism
from engine.config import ConfigError, resolve_checkpoint
from engine.step_result import StepResult
from kernels.backends import choose_backend
from kernels.cpu import library
from models.matrix_product import MatrixProduct
from models.mlp import PlainMLP
from models.residual import Residual
from models.weight_place import WeightPlace
from scheduler.batch import ScheduledBatch

CPU = torch.device("cpu")
Logits = dict[tuple[str, int], torch.Tensor]


@pytest.fixture(scope="session")
def wide_llama_dir(tmp_path_factory: pytest.TempPathFactory, tiny_llama_dir: Path) -> Path:
    """An inner size of 2,048, where a product of one row adds up in another order than one of more."""
    return widened(tiny_llama_dir, tmp_path_factory.mktemp("wide-llama"))


@pytest.fixture(scope="session")
def wide_mixtral_dir(tmp_path_factory: pytest.TempPathFactory, tiny_mixtral_dir: Path) -> Path:
    """The same, of experts: one may have a single row in a step of many."""
    return widened(tiny_mixtral_dir, tmp_path_factory.mktemp("wide-mixtral"))


def widened(directory: Path, wide: Path) -> Path:
    shutil.copytree(directory, wide, dirs_exist_ok=True)
    config = json.loads((wide / "config.json").read_text())
    config |= {"hidden_size": 256, "head_dim": 64, "intermediate_size": 2048}
    (wide / "config.json").write_text(json.dumps(config))
    sizes = {64: 256, 32: 128, 128: 2048}
    generator = torch.Generator().manual_seed(6)
    weights = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        shape = [sizes.get(size, size) for size in tensor.shape]
        values = torch.randn(shape, generator=generator)
        weights[name] = values * shape[-1] ** -0.5 if len(shape) == 2 else 1.0 + 0.2 * values
    save_file(weights, wide / "model.safetensors", metadata={"format": "pt"})
    return wide


def run(engine: object, *, together: bool) -> Logits:
    """Logits of every draw of four prompts, by request and output index."""
    drawn: Logits = {}
    runner = engine.engine.runner
    launch, logits = runner.launch, runner._model.logits
    seen: list[torch.Tensor] = []

    def tapped_logits(hidden: Residual) -> torch.Tensor:
        seen.append(logits(hidden))
        return seen[-1]

    def tapped_launch(batch: ScheduledBatch, *others: object) -> StepResult:
        result = launch(batch, *others)
        drawing = [one for one in batch.requests if one.samples]
        for row, request in zip(seen.pop() if drawing else [], drawing, strict=False):
            drawn[request.request_id, request.output_index] = row.clone()
        return result

    runner.launch, runner._model.logits = tapped_launch, tapped_logits
    rng = random.Random(8)
    for number, length in enumerate([1, 18, 37, 50]):
        prompt = [256, *(rng.randrange(250) for _ in range(length - 1))]
        engine.submit(f"r{number}", prompt, 5, sampling={"rank": True})  # asks for logits, not only the largest
        if not together:
            engine.run()
    engine.run()
    return drawn


def differing(first: Logits, second: Logits) -> list[tuple[str, int]]:
    assert first.keys() == second.keys()
    return [key for key, row in first.items() if not torch.equal(row, second[key])]


@pytest.mark.parametrize(
    ("directory", "dtype"),
    [
        ("wide_llama_dir", "float32"),
        ("wide_llama_dir", "bfloat16"),
        ("tiny_llama_dir", "bfloat16"),
        ("tiny_gemma3_dir", "float32"),
        ("wide_mixtral_dir", "float32"),
        ("tiny_mixtral_dir", "bfloat16"),
    ],
)
def test_logits_are_bitwise_equal_alone_together_in_chunks_and_from_cached_pages(
    rig: Callable, directory: str, dtype: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(directory)
    settings = {"deterministic": True, "max_model_len": 128, "dtype": dtype}
    alone = run(rig(model, **settings, enable_prefix_caching=False), together=False)
    assert differing(alone, run(rig(model, **settings), together=True)) == []
    chunked = rig(model, **settings, max_num_batched_tokens=11)
    assert differing(alone, run(chunked, together=True)) == []
    again = rig(model, **settings)
    run(again, together=True)
    assert differing(alone, run(again, together=True)) == []
    assert again.stats.cached_prompt_tokens >= 16 + 32 + 48


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="without AVX-512 torch's products of float32 add up a lone row in the order of many",
)
def test_without_it_a_lone_row_has_other_bits(rig: Callable, wide_llama_dir: Path) -> None:
    """What the flag is for; where this fails, it has become free."""
    alone = run(rig(wide_llama_dir, max_model_len=128), together=False)
    assert differing(alone, run(rig(wide_llama_dir, max_model_len=128), together=True)) != []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_products_rows_are_alike_from_two_rows_on(dtype: torch.dtype) -> None:
    """What the flag builds on, at the size of a layer of the demo model."""
    generator = torch.Generator().manual_seed(5)
    product = MatrixProduct(WeightPlace.of(torch.randn(640, 2048, generator=generator).to(dtype)))
    product.pack()
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert not product.is_packed
        pytest.skip("oneDNN has no product of bfloat16 for this processor")
    assert product.is_packed
    x = torch.randn(40, 2048, generator=generator).to(dtype)
    whole = product(x)
    for count in (2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33):
        assert torch.equal(product(x[:count]), whole[:count])
        assert torch.equal(product(x[-count:]), whole[-count:])


@pytest.mark.parametrize("activation", [F.silu, partial(F.gelu, approximate="tanh")], ids=["silu", "gelu"])
def test_activations_are_alike_on_two_threads_and_on_one(activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Three threads would cut a row where no vector ends."""
    gates = torch.randn(40, 2 * 2048, generator=torch.Generator().manual_seed(7))[:, :2048]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = torch.cat([activation(row[None]) for row in gates])
        torch.set_num_threads(2)
        assert torch.equal(activation(gates), alone)
        assert torch.equal(activation(gates[:33]), alone[:33])
    finally:
        torch.set_num_threads(threads)


def test_more_threads_than_keep_the_bits_are_left_out_with_a_warning(rig: Callable, tiny_llama_dir: Path) -> None:
    ready = rig(tiny_llama_dir, deterministic=True, threads=5).ready
    assert ready.threads == 2
    assert ready.warnings == ["--deterministic uses 2 of 5 threads: torch's activations depend on more"]
    assert rig(tiny_llama_dir, threads=5).ready.threads == 5
    torch.set_num_threads(1)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_of_an_mlp_without_a_gate_has_the_same_bits_alone_where_no_vector_is_full(
    dtype: torch.dtype, approximate: str
) -> None:
    """An inner size of 77: without care the last elements of all rows, taken as one, are computed otherwise."""
    activation = "gelu" if approximate == "none" else "gelu_tanh"
    backend, _ = choose_backend(CPU)
    mlp = PlainMLP(64, 77, activation, backend, bias=False, dtype=dtype, device=CPU)
    generator = torch.Generator().manual_seed(9)
    for _, parameter in list(mlp.parameters("")):
        parameter.view.copy_(torch.randn(parameter.shape, generator=generator) / 4)
        assert parameter.when_filled is not None
        parameter.when_filled()
    x = torch.randn(40, 64, generator=generator).to(dtype)
    whole = mlp.of_normed(Residual(x, backend), None)
    for start, end in [(0, 2), (3, 6), (17, 22), (37, 40)]:
        assert torch.equal(mlp.of_normed(Residual(x[start:end], backend), None), whole[start:end])


def test_without_a_gate_two_threads_need_shares_that_end_with_a_pair_of_vectors(tiny_llama_dir: Path) -> None:
    gated = replace(resolve_checkpoint(str(tiny_llama_dir)).read_spec(), intermediate_size=320)
    plain = replace(gated, gated_mlp=False)
    assert _limits_of_determinism(2, gated, CPU)[0] == 2
    assert _limits_of_determinism(2, plain, CPU)[0] == 1
    assert _limits_of_determinism(2, replace(plain, intermediate_size=384), CPU)[0] == 2


def test_a_cpu_without_the_native_kernels_refuses(
    rig: Callable, tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise library.LibraryError("it was not built")

    monkeypatch.setattr(library, "NativeLibrary", fail)
    with pytest.raises(ConfigError, match=r"it was not built\. Without it attention on CPUs is not deterministic"):
        rig(tiny_llama_dir, deterministic=True)


def test_a_gpu_leaves_nothing_out_and_every_thread_in(tiny_llama_dir: Path) -> None:
    spec = resolve_checkpoint(str(tiny_llama_dir)).read_spec()
    assert _limits_of_determinism(8, spec, torch.device("cuda")) == (8, [])
