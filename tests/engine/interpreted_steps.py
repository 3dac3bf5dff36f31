"""The job "steps" of `interpreted_jobs`: a whole engine over the Triton kernels, in Triton's interpreter.

With a stream that is the host's own, all as on a GPU but the GPU: kernels, null sequences, sampling on the device,
tokens fed back, steps launched ahead, and a page that two requests read once together, since this device is said to
have hardly any bandwidth. Answers with the tokens of each request, how often attention read a page for two, what
weights take and what a user is told.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from engine import choices, startup
from engine.config import EngineConfig
from engine.device_setup import DeviceSetup
from engine.engine import Engine
from engine.messages import EngineReady, EngineRequest
from engine.sampling_params import SamplingParams
from engine.token_sampler import KernelSampler
from kernels.roofline import DataSheet
from tests.engine.fake_device import FakeDevice

SETTINGS = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 24,
    "max_model_len": 64,
    "dtype": "float32",
    "kv_cache_dtype": "float32",  # which a CPU does not choose beside quantised weights
    "threads": 1,
}
REQUESTS = {  # of which the first two fill two steps, so that the third finds the page it shares
    "greedy": ([256, *range(40, 61)], {"temperature": 0.0}),
    "warm": ([256, *range(7, 31)], {"temperature": 4.0, "seed": 11}),
    "top-k": ([256, *range(40, 57), 9], {"temperature": 2.0, "top_k": 20, "seed": -5}),
}
NUM_TOKENS = 4


def submit_all(submit: Callable[[EngineRequest], None]) -> None:
    for name, (prompt, sampling) in REQUESTS.items():
        params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, **sampling)
        submit(EngineRequest(request_id=name, prompt_token_ids=prompt, sampling=params))


def run(engine: Engine) -> dict[str, list[int]]:
    """The tokens of each request."""
    submit_all(engine.submit)
    tokens: dict[str, list[int]] = {name: [] for name in REQUESTS}
    while engine.has_work:
        for delta in engine.step().deltas:
            assert delta.failure is None, delta.failure
            tokens[delta.request_id] += delta.token_ids
    return tokens


class Rerun:
    """Records a step by keeping it: decodes are padded with null sequences as for a graph, and run at each replay."""

    def record(self, step: Callable[[], None]) -> Rerun.Graph:
        return Rerun.Graph(step)

    class Graph:
        def __init__(self, step: Callable[[], None]) -> None:
            self.replay = step


@cache
def faithful_interpreter() -> None:
    from tests.kernels.gpu.interpreter import install

    install()


def build(model: str, **settings: object) -> tuple[Engine, EngineReady]:
    """An engine that takes this process for a GPU, with hardly any bandwidth."""
    from kernels.gpu.backend import TritonBackend

    faithful_interpreter()
    device = FakeDevice()

    def choose_setup(config: EngineConfig, chosen: choices.Choices, plan: object) -> DeviceSetup:
        return DeviceSetup(
            config,
            chosen,
            plan,
            memory=device.memory,
            stream=device.stream,
            sampler=KernelSampler(),
            recorder=Rerun(),
            sheet=DataSheet("slow", bandwidth=1e3, flops_16_bit=1e30, flops_8_bit=1e30),
        )

    choices.choose_backend = lambda device, **mode: (TritonBackend(**mode), [])
    startup.choose_setup = choose_setup
    config = EngineConfig(model=model, **{"num_gpu_blocks_override": 20, **SETTINGS, **settings})
    return startup.build_engine(config, startup.StageTimes(), lambda progress: None)


def answer(model: str, settings: dict[str, object]) -> dict[str, object]:
    from kernels.gpu import backend, sharing_cost

    attend_shared, num_shared = backend.cascade_attention, 0

    def count(*args: object, **kwargs: object) -> None:
        nonlocal num_shared
        num_shared += args[4].max_prefix_len == 16
        attend_shared(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "cascade_attention", count)
        patch.setattr(sharing_cost, "WORTHWHILE", 1.0)
        patch.setattr(sharing_cost, "PARTS_PER_MEMBER", 1)
        chosen = {"async_scheduling": True, "num_gpu_blocks_override": 60, **settings}
        engine, ready = build(model, **chosen)
        tokens = run(engine)
    told = {"weight_bytes": ready.weight_bytes, "weight_form": ready.weight_form, "warnings": ready.warnings}
    return {"tokens": tokens, **told, "shared": num_shared}
