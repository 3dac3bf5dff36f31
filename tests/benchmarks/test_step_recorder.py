"""Every moment of a step counts for one part, and nothing is left behind in the classes that were watched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.profiled_engine import Load, ProfiledEngine
from benchmarks.step_recorder import Part, StepRecorder
from engine.config import EngineConfig
from engine.sampling_params import SamplingParams
from kernels.cpu.backend import NativeBackend
from models.embedding import Embedding
from models.linear import Linear
from models.matrix_product import MatrixProduct
from scheduler.scheduler import Scheduler

GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
WATCHED = (NativeBackend, Embedding, Linear, MatrixProduct, Scheduler)


def ticks(*times: float) -> Iterator[float]:
    return iter(times)


def test_time_counts_for_the_innermost_part_and_adds_up() -> None:
    recorder = StepRecorder(clock=ticks(10.0, 11.0, 13.0, 16.0, 20.0, 25.0, 31.0, 38.0).__next__)
    with recorder.step(), recorder.part(Part.MODEL):
        with recorder.part(Part.HEAD):
            pass
        with recorder.part(Part.HEAD):
            pass
    assert recorder.steps == [{Part.ENGINE: 1.0 + 7.0, Part.MODEL: 2.0 + 4.0 + 6.0, Part.HEAD: 3.0 + 5.0}]
    assert sum(recorder.steps[0].values()) == 38.0 - 10.0


def test_a_part_that_raises_has_ended() -> None:
    recorder = StepRecorder(clock=ticks(0.0, 1.0, 2.0, 4.0).__next__)
    with recorder.step(), pytest.raises(RuntimeError), recorder.part(Part.HEAD):
        raise RuntimeError
    assert recorder.steps == [{Part.ENGINE: 3.0, Part.HEAD: 1.0}]


@pytest.fixture
def engine(tiny_gemma3_dir: Path) -> ProfiledEngine:
    config = EngineConfig(
        model=str(tiny_gemma3_dir), dtype="float32", quantization="none", threads=1, kv_cache_memory_bytes=10_000_000
    )
    return ProfiledEngine(config)


def test_a_real_step_has_all_parts_and_the_bytes_of_its_weights(engine: ProfiledEngine) -> None:
    before = [dict(vars(owner)) for owner in WATCHED]
    profile = engine.profile(Load("two", 2, 20, 40), steps=3, sampling=GREEDY)
    assert [dict(vars(owner)) for owner in WATCHED] == before
    assert [part for part in Part if not profile.parts[part]] == [Part.SAMPLING]  # the head draws by itself
    assert 0 < profile.text_seconds < profile.seconds
    # 7 layers of 64 hidden, 4 query heads and 1 of keys and values of 32, 128 in the MLP; float32
    assert profile.costs[Part.QKV].bytes == 7 * 64 * (4 + 2) * 32 * 4
    assert profile.costs[Part.OUTPUT].bytes == 7 * 4 * 32 * 64 * 4
    assert profile.costs[Part.MLP].bytes == 7 * 3 * 64 * 128 * 4
    assert profile.costs[Part.HEAD].bytes == 64 * engine.spec.vocab_size * 4
    assert not engine.engine.has_work


def test_the_sampler_has_its_part_where_it_is_asked(engine: ProfiledEngine) -> None:
    drawn = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9)
    assert engine.profile(Load("one", 1, 8, 8), steps=2, sampling=drawn).parts[Part.SAMPLING] > 0


def test_a_step_that_prefills_reads_the_whole_prompt_at_once(engine: ProfiledEngine) -> None:
    profile = engine.profile(Load("prefill", 1, 100, 100, prefills=True), steps=2, sampling=GREEDY)
    assert profile.costs[Part.QKV].flops == 2 * 100 * 7 * 64 * (4 + 2) * 32
    assert profile.costs[Part.HEAD].flops == 2 * 1 * 64 * engine.spec.vocab_size
    with pytest.raises(ValueError, match="prefill: 600 tokens do not fit into one step"):
        engine.profile(Load("prefill", 1, 600, 600, prefills=True), steps=1, sampling=GREEDY)
