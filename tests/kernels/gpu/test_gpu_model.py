"""The whole model that a GPU is measured with, at sizes that the interpreter can run, by the engine's own runner."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import gpu_bits, gpu_check, gpu_model
from benchmarks.gpu_cases import Sizes
from benchmarks.gpu_model import ModelReport, ModelSizes, Settings, StepRow, answers, floor_seconds, llama_8b, measure
from benchmarks.gpu_report import model_lines
from engine.device_setup import DeviceSetup
from engine.memory_budget import CudaMemory, MemoryReader
from engine.page_plan import PagePlan
from engine.token_sampler import KernelSampler

ROOT = Path(__file__).parents[3]
ON_GPU = torch.cuda.is_available()


class HostEvent:
    def wait(self) -> None: ...

    def seconds_since(self, earlier: HostEvent) -> float:
        return 1.0


class HostStream:
    """A queue in which everything is over when it is queued."""

    device = torch.device("cpu")

    def host_buffer(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype)

    def upload(self, source: torch.Tensor, target: torch.Tensor) -> HostEvent:
        target.copy_(source)
        return HostEvent()

    download = upload

    def record(self) -> HostEvent:
        return HostEvent()


@dataclass(frozen=True)
class Graph:
    replay: Callable[[], None]


class HostMemory:
    """64 MB, a quarter of it in use, and 8 MB for any call."""

    def record(self, step: Callable[[], None]) -> Graph:
        step()
        return Graph(step)

    def total(self) -> int:
        return 64_000_000

    def in_use(self) -> int:
        return 16_000_000

    def peak_of(self, call: Callable[[], None]) -> int:
        call()
        return 8_000_000


def host_setup(settings: Settings, plan: PagePlan) -> DeviceSetup:
    memory = HostMemory()
    recorder = None if settings.enforce_eager else memory
    return DeviceSetup(
        settings, settings, plan, memory=memory, stream=HostStream(), sampler=KernelSampler(), recorder=recorder
    )


MAKE_SETUP = gpu_model.gpu_setup if ON_GPU else host_setup
SIZES = Sizes(
    batches=(1,),
    contexts=(20,),
    prompts=(24,),
    sharing=(3, 32, 5),
    num_tokens=20,
    hidden=128,
    vocab_size=300,
    rows=2,
    heads=(4, 2),
    head_dim=64,
    pool_bytes=2**20,
)
SPEC = gpu_model.llama_spec(1, hidden_size=64, intermediate_size=96, heads=(2, 1), head_dim=64, vocab=130)


def sizes(device: torch.device, **changes: object) -> ModelSizes:
    settings = Settings(
        device=device, max_model_len=64, max_num_seqs=2, max_num_batched_tokens=8, num_gpu_blocks_override=4
    )
    chosen = ModelSizes(spec=SPEC, dtype=torch.float32, batches=(1, 2), context=20, steps=2, settings=settings)
    return replace(chosen, **changes)


def test_a_small_model_draws_the_cpus_tokens_with_graphs_and_without(device: torch.device) -> None:
    assert answers(device, MAKE_SETUP) == {
        "a model's tokens with graphs and on the CPU": True,
        "a model's tokens without and on the CPU": True,
    }


def test_bits_of_whole_models_are_compared(device: torch.device) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        bits = gpu_bits.bits_of_models(device, SPEC, dtype)
        assert bits == dict.fromkeys(bits, True)
        assert len(bits) == 3


def test_a_model_whose_bits_depend_on_the_batch_is_told(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_batch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return x @ weight.T * (1 + len(x) / 2**10)

    monkeypatch.setattr(gpu_bits.TritonBackend, "dense_product", property(lambda backend: by_batch))
    assert set(gpu_bits.bits_of_models(device, SPEC, torch.float32).values()) == {False}


def test_a_model_that_draws_others_is_told(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_model, "ANSWER", 2)
    host_answers = gpu_model._host_answers
    monkeypatch.setattr(gpu_model, "_host_answers", lambda *arguments: host_answers(*arguments)[::-1])
    assert set(answers(device, MAKE_SETUP).values()) == {False}


@pytest.fixture(scope="module")
def memory() -> MemoryReader:
    return CudaMemory(torch.device("cuda")) if ON_GPU else HostMemory()


def test_steps_of_every_batch_are_timed_with_graphs_and_without(
    device: torch.device, memory: MemoryReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_model, "WARM_STEPS", 1)
    report = measure(sizes(device), 1e9, memory, MAKE_SETUP)
    assert report.failures == []
    assert [(row.batch, row.has_graphs) for row in report.rows] == [(1, True), (2, True), (1, False), (2, False)]
    assert all(row.milliseconds is not None and row.milliseconds > 0 for row in report.rows)
    products = (2 * 2 + 2 * 1) * 64 * 64 + 3 * 64 * 96 + 64 * 130
    assert [row.floor for row in report.rows[:2]] == [
        pytest.approx(4 * (products + 22 * batch * 2 * 64) / 1e6) for batch in (1, 2)
    ]


def test_a_batch_without_room_says_so_and_the_others_go_on(
    device: torch.device, memory: MemoryReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_model, "WARM_STEPS", 1)
    settings = replace(sizes(device).settings, num_gpu_blocks_override=2, enforce_eager=True)
    report = measure(sizes(device, batches=(2, 1), steps=1, settings=settings), 1e9, memory, MAKE_SETUP)
    assert [row.note for row in report.rows] == ["needs 4 pages, of 2", ""] * 2


def test_what_ends_a_start_is_said(device: torch.device, memory: MemoryReader) -> None:
    settings = replace(sizes(device).settings, num_gpu_blocks_override=None, kv_cache_memory_bytes=1)
    (failure,) = measure(sizes(device, settings=settings), 1e9, memory, MAKE_SETUP).failures
    assert failure.startswith("ConfigError: no room for KV pages: --kv-cache-memory-bytes 1, is 1 bytes")


@pytest.mark.skipif(ON_GPU, reason="a real device has more memory than this model can use")
def test_the_share_of_memory_is_measured_where_pages_take_all_of_it(device: torch.device) -> None:
    settings = replace(sizes(device).settings, num_gpu_blocks_override=None, gpu_memory_utilization=0.9, max_num_seqs=8)
    settings = replace(settings, max_model_len=8192, enforce_eager=True)
    report = measure(sizes(device, batches=(), settings=settings), 1e9, HostMemory(), host_setup)
    assert report.num_pages == (0.9 * 64e6 - 16e6 - 8e6 - 2 * (2 << 20) - 2 * 4 * 16 * 64) // (2 * 4 * 16 * 64)
    assert report.memory_share == pytest.approx(24 / 64)  # the fake's memory does not grow with the pages
    assert not report.keeps_to_its_share


def test_the_floor_of_llama_8b_is_its_weights_and_its_pages() -> None:
    weights = 2 * (8_030_261_248 - 128_256 * 4096 - 65 * 4096)  # all parameters, less the embedding and the norms
    assert floor_seconds(llama_8b(), 2, [], 1e12) * 1e12 == pytest.approx(weights)
    assert floor_seconds(llama_8b(), 2, [1000], 1e12) * 1e12 == pytest.approx(weights + 1000 * 131_072)


def test_a_model_has_as_many_layers_as_half_of_the_memory_holds(device: torch.device) -> None:
    layers = {size: gpu_model.full_sizes(size * 10**9, device).spec.num_layers for size in (1, 16, 48, 140)}
    assert layers == {1: 1, 16: 13, 48: 32, 140: 32}


def test_the_report_says_what_was_missed_and_what_failed() -> None:
    step = StepRow(batch=32, context=1024, has_graphs=True, milliseconds=5.0, floor=4.0)
    rows = [step, replace(step, milliseconds=5.1), replace(step, has_graphs=False), replace(step, milliseconds=None)]
    report = ModelReport(
        shape="32 layers of 4096, bfloat16",
        rows=rows,
        num_pages=7,
        asked_share=0.9,
        memory_share=0.87,
        failures=["out of luck"],
    )
    lines = model_lines(report)
    assert "FAILED: out of luck" in lines
    assert "7 pages: 87.0% of the memory taken, 90.0% asked for, MORE THAN 2 % APART." in lines
    assert lines[-4:] == [
        "| 32 | 1024 | yes | 5.00 | 4.00 | 1.25 | 1.25 |",
        "| 32 | 1024 | yes | 5.10 | 4.00 | 1.27 | 1.25 missed |",
        "| 32 | 1024 | no | 5.00 | 4.00 | 1.25 |  |",
        "| 32 | 1024 | yes |  | 4.00 | | |",
    ]


COLLECT = ["--collect-only", "-qq", "-c", "/dev/null", f"--rootdir={ROOT}", "--import-mode=importlib"]


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("benchmarks.gpu_check", ["--help"]), ("pytest", [*COLLECT, "-p", "no:cacheprovider", *gpu_check.test_targets()])],
    ids=["script", "tests"],
)
def test_the_script_and_the_tests_it_runs_need_torch_triton_numpy_and_pytest_only(
    module: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import runpy, sys\n"
        "for name in ('msgspec', 'gguf', 'safetensors', 'fastapi', 'pydantic', 'orjson', 'huggingface_hub',\n"
        "             'tokenizers', 'jinja2', 'uvicorn', 'prometheus_client', 'aiohttp', 'hypothesis', 'httpx'):\n"
        "    sys.modules[name] = None\n"
        "module = sys.argv.pop(1)\n"
        "runpy.run_module(module, run_name='__main__', alter_sys=True)\n"
    )
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    command = [sys.executable, "-c", program, module, *arguments]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.skipif(ON_GPU, reason="there the script itself does it")
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_the_script_writes_a_report_for_people_and_one_for_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it but the device and the clock, and without the kernels' tests."""
    host = torch.device("cpu")
    cuda = SimpleNamespace(
        is_available=lambda: True, mem_get_info=lambda device: (2**22, 2**23), get_device_name=lambda device: "H200"
    )
    monkeypatch.setattr(
        gpu_check, "torch", SimpleNamespace(**vars(torch) | {"cuda": cuda, "device": lambda name: host})
    )
    monkeypatch.setattr(gpu_check, "full_sizes", lambda free_bytes: SIZES)
    monkeypatch.setattr(gpu_check, "graph_seconds", lambda launches: (launches[0](), 1e-3)[1])
    monkeypatch.setattr(gpu_check, "copy_bandwidth", lambda *arguments: 1e9)
    monkeypatch.setattr(gpu_check, "matrix_rate", lambda *arguments: 1e12)
    monkeypatch.setattr(gpu_check, "CudaMemory", lambda device: HostMemory())
    monkeypatch.setattr(gpu_model, "full_sizes", lambda free_bytes, device: sizes(host, batches=(1,)))
    monkeypatch.setattr(gpu_model, "WARM_STEPS", 1)
    monkeypatch.setattr(gpu_model, "answers", lambda device: {"tokens": True})
    monkeypatch.setattr(gpu_bits, "full_spec", lambda: SPEC)
    monkeypatch.setattr(gpu_model, "measure", partial(measure, make_setup=host_setup))
    status = gpu_check.main(["--skip-tests", "--output", str(tmp_path / "new" / "report")])
    report = json.loads((tmp_path / "new" / "report.json").read_text())
    assert (report["device"], report["data sheet bandwidth, GB/s"]) == ("H200", 4800)
    assert report["answers"] == {"tokens": True}
    assert len(report["bits"]) == 9
    assert [row["batch"] for row in report["model"]["rows"]] == [1, 1]
    assert report["model"]["failures"] == []
    assert status == 1  # the fake's memory is not what was asked for
    text = (tmp_path / "new" / "report.md").read_text()
    assert "## A whole model" in text
    assert "MORE THAN 2 % APART" in text
