"""Real engines over tiny models, in this process, with as many or as few pages as a test wants.

On the CPU, or, as a device with memory of its own would be used, on a `FakeDevice`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine import choices, startup
from engine.config import EngineConfig
from engine.device_setup import DeviceSetup
from engine.engine import Engine
from engine.messages import EngineRequest, EngineStats, RequestDelta
from engine.sampling_params import SamplingParams
from engine.startup import StageTimes, build_engine
from kernels.backends import choose_backend
from tests.engine.fake_device import FakeDevice

NUM_PAGES = 500  # room for every test; an audit of as many as memory allows takes far longer than a step


class Rig:
    """One engine. ``run`` checks at its end that every page is free or cached and that the audit is clean."""

    def __init__(self, model: Path, settings: dict[str, object]) -> None:
        usual = {"dtype": "float32", "audit_interval": 1, "threads": 1, "num_gpu_blocks_override": NUM_PAGES}
        chosen = {**usual, **settings}
        config = EngineConfig(model=str(model), **chosen)
        self.engine: Engine
        self.engine, self.ready = build_engine(config, StageTimes(), lambda progress: None)
        self.deltas: dict[str, list[RequestDelta]] = {}

    def submit(self, request_id: str, prompt: list[int], max_tokens: int, **fields: object) -> None:
        """A request that runs to its length, greedy unless ``sampling`` fields say otherwise."""
        sampling = {"temperature": 0.0, "ignore_eos": True, **fields.pop("sampling", {})}
        self.engine.submit(
            EngineRequest(
                request_id=request_id,
                prompt_token_ids=prompt,
                sampling=SamplingParams(max_tokens=max_tokens, **sampling),
                **fields,
            )
        )

    def step(self) -> None:
        for delta in self.engine.step().deltas:
            self.deltas.setdefault(delta.request_id, []).append(delta)

    def run(self) -> None:
        while self.engine.has_work:
            self.step()
        stats = self.stats
        assert self.engine.audit() == []
        assert self.engine.stats().audit_failures == 0
        assert stats.pages_free + sum(group.cached for group in stats.groups) == stats.pages_total
        assert stats.host_pages_swapped == 0

    def alone(self, request_id: str, prompt: list[int], max_tokens: int, **fields: object) -> list[int]:
        """The tokens of a request with the engine to itself."""
        self.submit(request_id, prompt, max_tokens, **fields)
        self.run()
        assert self.last(request_id).failure is None
        return self.tokens(request_id)

    def tokens(self, request_id: str) -> list[int]:
        return [token for delta in self.deltas[request_id] for token in delta.token_ids]

    def last(self, request_id: str) -> RequestDelta:
        return self.deltas[request_id][-1]

    @property
    def stats(self) -> EngineStats:
        return self.engine.stats()


@pytest.fixture(scope="session")
def rig() -> Callable[..., Rig]:
    return lambda model, **settings: Rig(model, settings)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """A fake device, which every engine of the test is built on."""
    fake = FakeDevice()

    def choose_fake_backend(*args: object, **kwargs: object) -> tuple[object, list[str]]:
        backend, warnings = choose_backend(*args, **kwargs)
        return fake.backend(backend), warnings

    def choose_setup(config: EngineConfig, chosen: choices.Choices, plan: object) -> DeviceSetup:
        recorder = None if config.enforce_eager else fake
        return DeviceSetup(
            config,
            chosen,
            plan,
            memory=fake.memory,
            stream=fake.stream,
            sampler=fake,
            recorder=recorder,
            sheet=fake.sheet,
        )

    monkeypatch.setattr(choices, "choose_backend", choose_fake_backend)
    monkeypatch.setattr(startup, "choose_setup", choose_setup)
    return fake
