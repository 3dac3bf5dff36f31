"""What is told of a prompt itself, log probabilities or its embedding: each position once, the same bits always."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.input_batch import StepTensors
from engine.messages import Pooling
from engine.sampling_params import TokenLogprobs
from models.residual import Residual
from scheduler.request import FinishReason
from tests.engine.fake_device import FakeDevice
from tests.models.conftest import OracleJob, oracle_logits  # noqa: F401  a fixture

LENGTHS = [1, 2, 16, 17, 40, 70]
FORMS = [
    pytest.param({"deterministic": True}, id="float32"),
    pytest.param({"quantization": "int8"}, id="int8"),
]


@pytest.fixture(params=["tiny_llama_dir", "tiny_gemma3_dir"])
def model(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def prompts() -> list[list[int]]:
    source = random.Random(6)
    return [[256, *(source.randrange(250) for _ in range(length - 1))] for length in LENGTHS]


def told(engine: object, name: str) -> list[TokenLogprobs | None]:
    """What was told of each prompt token, all of it before the first token drawn or with it."""
    deltas = engine.deltas[name]
    first = next((place for place, delta in enumerate(deltas) if delta.token_ids), len(deltas))
    assert not any(delta.prompt_logprobs for delta in deltas[first + 1 :])
    return [one for delta in deltas for one in delta.prompt_logprobs]


def vector(engine: object, name: str) -> list[float]:
    (embedding,) = [delta.embedding for delta in engine.deltas[name] if delta.embedding is not None]
    assert engine.last(name).embedding == embedding
    return list(struct.unpack(f"<{len(embedding) // 4}f", embedding))


def submit_all(engine: object, *, together: bool) -> dict[str, object]:
    """Prompts whose log probabilities are wanted, beside their embeddings and requests that want neither."""
    for number, prompt in enumerate(prompts()):
        engine.submit(f"logprobs{number}", prompt, number % 3 * 4, prompt_logprobs=number % 4)
        for pooling in Pooling:
            engine.submit(f"{pooling.value}{number}", prompt, 0, pooling=pooling)
        if together:
            engine.submit(f"other{number}", prompt, 7)
        else:
            engine.run()
    engine.run()
    found: dict[str, object] = {}
    for number in range(len(LENGTHS)):
        found[f"logprobs{number}"] = told(engine, f"logprobs{number}")
        for pooling in Pooling:
            found[f"{pooling.value}{number}"] = vector(engine, f"{pooling.value}{number}")
    assert not any(delta.prompt_logprobs for name in engine.deltas if "other" in name for delta in engine.deltas[name])
    return found


@pytest.mark.parametrize("forms", FORMS)
def test_c14_bits_are_the_same_alone_together_in_chunks_cached_and_preempted(
    rig: Callable, model: Path, forms: dict[str, object]
) -> None:
    settings = {"max_model_len": 128, "block_size": 8, **forms}
    alone = submit_all(rig(model, **settings), together=False)
    assert [len(alone[f"logprobs{number}"]) for number in range(6)] == LENGTHS
    for number, prompt in enumerate(prompts()):
        first, *others = alone[f"logprobs{number}"]
        assert first is None
        assert [len(one.top_ids) for one in others] == [number % 4] * (len(prompt) - 1)
    together = rig(model, **settings)
    assert submit_all(together, together=True) == alone
    together.deltas.clear()
    assert submit_all(together, together=True) == alone  # though every page is cached
    assert submit_all(rig(model, **settings, max_num_batched_tokens=7, max_num_seqs=5), together=True) == alone
    tight = rig(
        model,
        **settings,
        max_num_batched_tokens=40,
        max_num_seqs=8,
        num_gpu_blocks_override=14 if "llama" in model.name else 70,
        watermark_tokens=0,
        async_scheduling=True,
    )
    assert submit_all(tight, together=True) == alone
    assert tight.stats.num_preemptions > 0


@pytest.mark.parametrize("caching", [True, False])
def test_a_prompt_that_is_preempted_half_read_is_told_no_position_twice(
    rig: Callable, model: Path, caching: bool
) -> None:
    prompt = prompts()[5]
    settings = {"deterministic": True, "max_model_len": 128, "enable_prefix_caching": caching}
    found = []
    for preempted in (False, True):
        engine = rig(model, **settings, max_num_batched_tokens=50)
        engine.submit("a", prompt, 3, prompt_logprobs=2)
        engine.submit("b", prompt, 0, pooling=Pooling.MEAN)
        engine.step()
        if preempted:
            scheduler = engine.engine.scheduler
            for request in tuple(scheduler.running):
                scheduler.running.remove(request)
                request.restart(0)
                scheduler.waiting.add(request)
        engine.run()
        found.append((told(engine, "a"), vector(engine, "b"), engine.tokens("a")))
        assert (engine.stats.recomputed_tokens > 0) == preempted
    assert found[0] == found[1]
    assert len(found[0][0]) == len(prompt)


def test_log_probabilities_are_those_of_transformers(
    rig: Callable,
    tiny_llama_dir: Path,
    tiny_gemma3_dir: Path,
    oracle_logits: Callable,  # noqa: F811  the fixture
) -> None:
    prompt = prompts()[-1]
    rows = list(range(len(prompt)))
    directories = [tiny_llama_dir, tiny_gemma3_dir]
    oracle = oracle_logits([OracleJob(directory, [prompt], [rows]) for directory in directories])
    for directory, (logits,) in zip(directories, oracle, strict=True):
        engine = rig(directory, max_num_batched_tokens=33)
        engine.submit("a", prompt, 0, prompt_logprobs=5)
        engine.run()
        expected = logits.double().log_softmax(dim=-1)
        for place, one in enumerate(told(engine, "a")[1:], 1):
            assert one.logprob == pytest.approx(float(expected[place - 1, prompt[place]]), abs=1e-4)
            best = expected[place - 1].topk(5).values.tolist()
            assert one.top_logprobs == pytest.approx(best, abs=1e-4)


def test_pieces_come_with_the_steps_and_the_last_with_the_first_token(rig: Callable, tiny_llama_dir: Path) -> None:
    engine = rig(tiny_llama_dir, max_num_batched_tokens=16)
    engine.submit("a", prompts()[4], 3, prompt_logprobs=0, sampling={"logprobs": 0})
    engine.run()
    pieces = [(len(delta.prompt_logprobs), len(delta.token_ids)) for delta in engine.deltas["a"]]
    assert pieces == [(17, 0), (16, 0), (7, 1), (0, 1), (0, 1)]


def test_a_prompt_of_several_samples_is_told_with_the_first(rig: Callable, tiny_llama_dir: Path) -> None:
    engine = rig(tiny_llama_dir, max_num_batched_tokens=16)
    engine.submit("a", prompts()[4], 3, children=["b", "c"], prompt_logprobs=1)
    engine.submit("d", prompts()[4], 0, children=["e"], prompt_logprobs=1)
    engine.run()
    assert len(told(engine, "a")) == len(told(engine, "d")) == 40
    assert told(engine, "b") == told(engine, "c") == told(engine, "e") == []
    assert len(engine.tokens("c")) == 3
    assert engine.last("e").finish_reason is FinishReason.LENGTH


def test_a_vector_is_the_mean_of_those_of_all_that_begins_the_prompt(rig: Callable, model: Path) -> None:
    prompt = prompts()[4]
    engine = rig(model, max_model_len=128)
    engine.submit("mean", prompt, 0, pooling=Pooling.MEAN)
    for length in range(1, len(prompt) + 1):
        engine.submit(f"last{length}", prompt[:length], 0, pooling=Pooling.LAST)
    engine.run()
    states = torch.tensor([vector(engine, f"last{length}") for length in range(1, len(prompt) + 1)])
    torch.testing.assert_close(torch.tensor(vector(engine, "mean")), states.mean(dim=0), rtol=0, atol=1e-5)
    ledger = engine.last("mean")
    assert (ledger.finish_reason, ledger.token_ids, ledger.num_cached_tokens) == (FinishReason.LENGTH, [], 0)
    assert engine.stats.generation_tokens == 0


def test_a_last_state_is_what_the_head_reads(rig: Callable, tiny_llama_dir: Path) -> None:
    prompt = prompts()[3]
    engine = rig(tiny_llama_dir)
    engine.submit("state", prompt, 0, pooling=Pooling.LAST)
    engine.submit("token", prompt, 1, sampling={"logprobs": 20})
    engine.run()
    head = load_file(tiny_llama_dir / "model.safetensors")["lm_head.weight"]
    expected = (head @ torch.tensor(vector(engine, "state"))).log_softmax(dim=0)
    (one,) = engine.deltas["token"][0].logprobs
    assert one.top_ids == expected.topk(20).indices.tolist()
    assert one.top_logprobs == pytest.approx(expected[one.top_ids].tolist(), abs=1e-4)


def test_what_a_step_behind_a_failed_one_has_read_is_read_again(
    rig: Callable, tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = prompts()[5]
    alone = rig(tiny_llama_dir, deterministic=True)
    alone.submit("a", prompt, 4, prompt_logprobs=2)
    alone.run()
    engine = rig(tiny_llama_dir, deterministic=True, max_num_batched_tokens=16, async_scheduling=True)
    runner_model = engine.engine.runner._model
    drawing, failed = runner_model.drawing, []

    def fail_once(step: StepTensors, *rest: object) -> Residual:
        if not failed:
            failed.append(True)
            raise RuntimeError("the first step")
        return drawing(step, *rest)

    monkeypatch.setattr(runner_model, "drawing", fail_once)
    engine.submit("victim", [256, *range(10)], 2)
    engine.step()
    engine.submit("a", prompt, 4, prompt_logprobs=2)
    engine.step()  # plans the first chunk of "a" behind the step that fails, so that what it reads is not to be trusted
    assert engine.last("victim").failure.code == "step_failed"
    assert "the first step" in caplog.text
    engine.step()
    assert "a" not in engine.deltas
    engine.run()
    assert told(engine, "a") == told(alone, "a")


def test_an_abort_in_the_middle_of_a_prompt_ends_its_reading(rig: Callable, tiny_llama_dir: Path) -> None:
    engine = rig(tiny_llama_dir, max_num_batched_tokens=16)
    engine.submit("a", prompts()[5], 3, prompt_logprobs=1)
    engine.submit("b", prompts()[5], 0, pooling=Pooling.MEAN)
    engine.step()
    engine.engine.abort(["a", "b"])
    engine.run()
    assert len(told(engine, "a")) == 17
    assert [engine.last(name).finish_reason for name in "ab"] == [FinishReason.ABORT] * 2
    assert engine.last("b").embedding is None


@pytest.mark.parametrize("fields", [{"max_tokens": 1}, {"max_tokens": 0, "children": ["b"]}])
def test_an_embedding_with_tokens_or_samples_is_refused(
    rig: Callable, tiny_llama_dir: Path, fields: dict[str, object]
) -> None:
    engine = rig(tiny_llama_dir)
    engine.submit("a", [256, 1], **fields, pooling=Pooling.MEAN)
    engine.run()
    assert engine.last("a").failure.code == "invalid"


@pytest.mark.parametrize("settings", [{"enforce_eager": True}, {"async_scheduling": True}], ids=["eager", "graphs"])
def test_a_device_tells_what_a_cpu_does(
    rig: Callable, model: Path, settings: dict[str, object], request: pytest.FixtureRequest
) -> None:
    sizes = {"max_model_len": 128, "max_num_seqs": 16, "max_num_batched_tokens": 40}
    expected = submit_all(rig(model, **sizes), together=True)
    device: FakeDevice = request.getfixturevalue("device")
    answered = submit_all(rig(model, **sizes, **settings), together=True)
    assert (device.num_replays > 0) == ("async_scheduling" in settings)
    for name, there in expected.items():
        here = answered[name]
        if "logprobs" not in name:
            assert here == pytest.approx(there, abs=1e-4)
            continue
        assert here[0] is there[0] is None
        for one, other in zip(here[1:], there[1:], strict=True):
            assert (one.rank, one.top_ids) == (other.rank, other.top_ids)
            assert [one.logprob, *one.top_logprobs] == pytest.approx([other.logprob, *other.top_logprobs], abs=1e-4)
