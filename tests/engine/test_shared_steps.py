"""Steps whose decodes begin with the same pages read these once, where that pays, and draw what they draw without.

On a fake device of little bandwidth, for which every page that need not be read pays, and which finds the pages of a
group by the table of one member alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import device_setup
from kernels.gpu import sharing_cost
from kernels.roofline import H100, DataSheet
from tests.engine.fake_device import FakeDevice

SLOW = DataSheet("a slow one", bandwidth=1e3, flops_16_bit=1e30, flops_8_bit=1e30)
SYSTEM = [256, *range(1, 80)]  # five pages
OTHER = [256, *range(101, 148)]  # three pages
SETTINGS = {"max_num_seqs": 6, "max_num_batched_tokens": 48, "max_model_len": 256, "watermark_tokens": 0}


@pytest.fixture
def device(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    device.sheet = SLOW
    monkeypatch.setattr(sharing_cost, "WORTHWHILE", 1.0)
    return device


@pytest.fixture(params=["tiny_llama_dir", "tiny_gemma3_dir"])
def model(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def workload(engine: object) -> dict[str, list[int]]:
    """Two long prompts and their continuations, prompts of nobody else, and one that is continued four times."""
    rng = random.Random(7)
    for number in range(14):
        prefix = rng.choice([SYSTEM, SYSTEM, OTHER, []])
        prompt = [*prefix, *(rng.randrange(250) for _ in range(rng.choice([1, 5, 16, 30])))]
        children = ["x", "y", "z"] if number == 5 else []
        sampling = {"temperature": 4.0, "seed": number} if number % 2 else {}
        engine.submit(f"r{number}", prompt, rng.choice([3, 20, 40]), children=children, sampling=sampling)
        for _ in range(rng.choice([0, 2, 6])):
            engine.step()
    engine.run()
    return {name: engine.tokens(name) for name in engine.deltas}


@pytest.mark.parametrize(
    ("tight", "mode"),
    [
        (False, {}),
        (True, {"async_scheduling": True}),
        (True, {"enforce_eager": True}),
        (False, {"enforce_eager": True, "async_scheduling": True}),
    ],
)
def test_answers_are_those_of_the_cpu(
    rig: Callable, model: Path, tight: bool, mode: dict[str, bool], request: pytest.FixtureRequest
) -> None:
    """Groups form, grow and shrink; tight memory preempts their members, and children copy pages they write to."""
    pages = (18 if "llama" in str(model) else 90) if tight else None
    settings = {**SETTINGS, "num_gpu_blocks_override": pages}
    tokens = workload(rig(model, **settings))
    device: FakeDevice = request.getfixturevalue("device")
    engine = rig(model, **settings, **mode)
    device.stream.uploads.clear()
    assert workload(engine) == tokens
    assert (engine.stats.num_preemptions > 0) == tight
    assert len(device.stream.uploads) == engine.stats.steps
    sizes = {tuple(sorted(map(len, groups))) for groups in device.shared}
    assert sizes >= ({(2,)} if tight else {(2,), (3,), (2, 2)}), sizes
    if "enforce_eager" not in mode:
        assert device.num_replays > 10


def decoding(rig: Callable, model: Path, count: int, **settings: object) -> object:
    """An engine in which so many requests with `SYSTEM` before their prompts draw their second token next."""
    engine = rig(model, **{**SETTINGS, "max_num_batched_tokens": 256, **settings})
    engine.alone("cached", [*SYSTEM, 90], 1)
    for number in range(count):
        engine.submit(f"r{number}", [*SYSTEM, 91 + number], 9 - 2 * number)
    engine.step()
    return engine


def test_decodes_that_share_leave_their_graph_and_the_last_one_returns(
    rig: Callable, device: FakeDevice, tiny_llama_dir: Path
) -> None:
    engine = decoding(rig, tiny_llama_dir, 3)
    num_layers = len(engine.ready.layer_windows)
    seen = []
    while engine.engine.has_work:
        device.shared.clear()
        before = device.num_replays
        engine.step()
        assert len(device.shared) in (0, num_layers)
        seen.append((device.num_replays - before, device.shared[:1]))
    assert seen == [(0, [[(0, 1, 2)]])] * 4 + [(0, [[(0, 1)]])] * 2 + [(1, [])] * 2


def test_decodes_share_beside_a_chunk_of_a_prompt(rig: Callable, device: FakeDevice, tiny_llama_dir: Path) -> None:
    engine = decoding(rig, tiny_llama_dir, 2)
    engine.submit("long", [256, *range(30)], 2)
    device.shared.clear()
    engine.step()
    assert engine.tokens("long")
    assert device.shared[0] == [(0, 1)]


def test_layers_with_a_window_read_their_own_pages(rig: Callable, device: FakeDevice, tiny_gemma3_dir: Path) -> None:
    engine = decoding(rig, tiny_gemma3_dir, 2)
    device.shared.clear()
    engine.step()
    assert 0 < len(device.shared) == engine.ready.layer_windows.count(None) < len(engine.ready.layer_windows)


def test_children_share_all_of_their_prompt(rig: Callable, device: FakeDevice, tiny_llama_dir: Path) -> None:
    engine = rig(tiny_llama_dir, **SETTINGS, enable_prefix_caching=False)
    sampling = {"temperature": 4.0, "seed": 1}
    engine.submit("first", [*SYSTEM, 90], 30, children=["x", "y", "z"], sampling=sampling)
    engine.run()
    assert device.shared[0] == [(0, 1, 2, 3)]


@pytest.mark.parametrize(
    ("sheet", "settings"), [(None, {}), (H100, {}), (SLOW, {"deterministic": True}), (SLOW, {"max_num_seqs": 1})]
)
def test_nobody_shares_without_a_data_sheet_for_little_in_deterministic_mode_and_alone(
    rig: Callable, device: FakeDevice, tiny_llama_dir: Path, sheet: DataSheet | None, settings: dict[str, object]
) -> None:
    device.sheet = sheet
    engine = decoding(rig, tiny_llama_dir, 3, **settings)
    engine.run()
    assert device.shared == []
    assert device.num_replays == (21 if "max_num_seqs" in settings else 9)


def test_the_largest_step_has_room_for_a_plan_of_all(
    rig: Callable, device: FakeDevice, tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_setup, "CHANGES_PER_STEP", 0)
    engine = rig(tiny_llama_dir, **{**SETTINGS, "max_num_seqs": 4, "max_num_batched_tokens": 4})
    for number, prefix in enumerate((SYSTEM, OTHER)):
        engine.alone(f"cached {number}", [*prefix, 90], 1)
    for number in range(4):
        engine.submit(f"r{number}", [*(SYSTEM, OTHER)[number % 2], 91 + number], 9)
    engine.run()
    assert sorted(device.shared[-1]) == [(0, 2), (1, 3)]
