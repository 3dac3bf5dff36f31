"""Log probabilities of tokens: exact against a dense float64 reference, and the same bits whatever goes on beside."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine import logprobs
from engine.logprobs import LEAST_LOGPROB, LogprobTable
from engine.messages import RequestDelta
from engine.sampling_params import TokenLogprobs
from kernels.cpu.library import best_library
from models.residual import Residual

SAMPLING = [
    {},
    {"temperature": 1.5, "seed": 11},
    {"temperature": 0.7, "top_k": 5, "seed": 3},
    {"temperature": 1.0, "top_p": 0.5, "seed": 4, "logprobs": 20},
]


@pytest.fixture(params=["tiny_llama_dir", "tiny_gemma3_dir"])
def model(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["native", "torch"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By which tables are computed."""
    if request.param == "torch":
        monkeypatch.setattr(logprobs, "best_library", lambda: None)
    elif best_library() is None:
        pytest.skip("no native library")
    return request.param


def token_logprobs(logits: torch.Tensor, token_ids: list[int], num_top: int) -> list[TokenLogprobs]:
    """Of one token of each row."""
    return logprobs.token_logprobs(logits, range(len(logits)), token_ids, [num_top] * len(logits))


def odd_rows(vocab_size: int) -> torch.Tensor:
    """Rows as they come, and such with equal logits, zeros of both signs, NaN and infinities."""
    generator = torch.Generator().manual_seed(vocab_size)
    rows = torch.randn(8, vocab_size, generator=generator) * 4
    rows[1].round_()
    rows[2] = torch.tensor([0.0, -0.0]).repeat(vocab_size)[:vocab_size]
    rows[3, ::2] = math.nan
    rows[4, : vocab_size // 2] = math.inf
    rows[5] = math.nan
    rows[6] = -math.inf
    rows[6, vocab_size // 2] = 3.0
    rows[7, 0] = -2e4
    return rows


def reference(logits: torch.Tensor) -> torch.Tensor:
    """Float64 log probabilities [num_rows, vocab]."""
    logits = logits.double().nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    largest = logits.amax(dim=1, keepdim=True)
    shares = torch.where(logits == largest, 0.0, -math.inf)
    return torch.where(largest.isfinite(), logits, shares).log_softmax(dim=1)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("vocab_size", [2, 127, 285, 5000, 40_000])
@pytest.mark.parametrize("num_top", [0, 1, 20])
def test_values_ranks_and_the_most_likely_are_those_of_a_whole_sort(vocab_size: int, num_top: int) -> None:
    logits = odd_rows(vocab_size)
    token_ids = [random.Random(vocab_size + row).randrange(vocab_size) for row in range(8)]
    expected = reference(logits)
    places = torch.sort(expected, dim=1, descending=True, stable=True).indices.tolist()
    for row, told in enumerate(token_logprobs(logits, token_ids, num_top)):
        assert told.top_ids == places[row][:num_top]
        assert told.rank == 1 + places[row].index(token_ids[row])
        for token_id, value in zip((token_ids[row], *told.top_ids), (told.logprob, *told.top_logprobs), strict=True):
            exact = float(expected[row, token_id])
            assert value == (LEAST_LOGPROB if exact < LEAST_LOGPROB else pytest.approx(exact, abs=4e-6))


@pytest.mark.usefixtures("implementation")
def test_b17_a_tokens_value_is_bit_by_bit_its_entry_among_the_most_likely() -> None:
    logits = torch.randn(40, 5000, generator=torch.Generator().manual_seed(3))
    for row, token_id in enumerate(logits.topk(9, dim=1).indices[range(40), [row % 9 for row in range(40)]].tolist()):
        (told,) = token_logprobs(logits[row, None], [token_id], 9)
        assert told.rank == 1 + row % 9
        assert told.logprob == told.top_logprobs[row % 9]


@pytest.mark.usefixtures("implementation")
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it_or_how_many_are_told() -> None:
    logits = torch.cat([odd_rows(5001), torch.randn(20, 5001, generator=torch.Generator().manual_seed(3))])
    token_ids = list(range(28))
    together = token_logprobs(logits, token_ids, 20)
    for row, told in enumerate(together):
        (alone,) = token_logprobs(logits[row, None], [token_ids[row]], 3)
        assert alone == TokenLogprobs(told.logprob, told.rank, told.top_ids[:3], told.top_logprobs[:3])


@pytest.mark.usefixtures("implementation")
def test_a_table_cuts_each_row_to_what_was_asked_of_it() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]])
    first, second = LogprobTable.of(logits, torch.tensor([1, 1]), 2).rows([1, 0])
    assert (first.rank, first.top_ids, len(first.top_logprobs)) == (2, [2], 1)
    assert (second.rank, second.top_ids, second.top_logprobs) == (2, [], [])


@pytest.mark.usefixtures("implementation")
def test_of_chosen_rows_each_is_told_with_as_many_as_are_asked_of_it() -> None:
    logits = odd_rows(5001)
    every = token_logprobs(logits, list(range(8)), 20)
    chosen = logprobs.token_logprobs(logits, [6, 0, 2], [6, 0, 2], [0, 3, 20])
    for one, row, num_top in zip(chosen, [6, 0, 2], [0, 3, 20], strict=True):
        whole = every[row]
        assert one == TokenLogprobs(whole.logprob, whole.rank, whole.top_ids[:num_top], whole.top_logprobs[:num_top])


def test_the_native_library_tells_the_same_tokens_as_torch_and_values_to_a_millionth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits = torch.cat([odd_rows(9000), 3 * torch.randn(8, 9000, generator=torch.Generator().manual_seed(1))])
    native = LogprobTable.of(logits, torch.arange(16), 20)
    monkeypatch.setattr(logprobs, "best_library", lambda: None)
    by_torch = LogprobTable.of(logits, torch.arange(16), 20)
    assert torch.equal(native.top_ids, by_torch.top_ids)
    assert torch.equal(native.ranks, by_torch.ranks)
    assert torch.allclose(native.values, by_torch.values, rtol=1e-6, atol=1e-6)


# ---- of whole engines


def prompts(seed: int, count: int) -> list[list[int]]:
    source = random.Random(seed)
    return [[256, *(source.randrange(250) for _ in range(source.choice([0, 3, 17, 40])))] for _ in range(count)]


def told(engine: object, name: str) -> list[TokenLogprobs]:
    """What was told of each token of a request."""
    for delta in engine.deltas[name]:
        assert len(delta.logprobs) == len(delta.token_ids)
    return [one for delta in engine.deltas[name] for one in delta.logprobs]


def submit_all(engine: object, *, together: bool) -> dict[str, list[TokenLogprobs]]:
    """Eight requests that ask for log probabilities, and eight that do not."""
    for number, prompt in enumerate(prompts(4, 8)):
        sampling = {"logprobs": 5, **SAMPLING[number % 4]}
        engine.submit(f"r{number}", prompt, 9, sampling=sampling)
        if together:
            engine.submit(f"other{number}", prompt[:5], 9, sampling={"temperature": 1.0, "seed": number})
        else:
            engine.run()
    engine.run()
    assert not any(delta.logprobs for name in engine.deltas if "other" in name for delta in engine.deltas[name])
    return {f"r{number}": told(engine, f"r{number}") for number in range(8)}


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("forms", [{"deterministic": True}, {"quantization": "int8"}], ids=["float32", "int8"])
def test_c14_bits_are_the_same_alone_together_in_chunks_preempted_cached_and_planned_ahead(
    rig: Callable, model: Path, forms: dict[str, object]
) -> None:
    settings = {"max_model_len": 128, **forms}
    alone = submit_all(rig(model, **settings, enable_prefix_caching=False), together=False)
    assert [len(one.top_ids) for one in alone["r3"]] == [20] * 9
    together = rig(model, **settings, async_scheduling=True)
    assert submit_all(together, together=True) == alone
    together.deltas.clear()
    assert submit_all(together, together=True) == alone
    assert together.stats.cached_prompt_tokens > 0
    pages = 12 if "llama" in model.name else 70
    tight = rig(
        model, **settings, max_num_batched_tokens=11, max_num_seqs=8, num_gpu_blocks_override=pages, watermark_tokens=0
    )
    assert submit_all(tight, together=True) == alone
    assert tight.stats.num_preemptions > 0


def test_values_are_those_of_the_models_own_logits_before_temperature_and_filters(
    rig: Callable, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = rig(model)
    seen: list[torch.Tensor] = []
    logits = engine.engine.runner._model.logits

    def tapped(hidden: Residual) -> torch.Tensor:
        seen.append(logits(hidden).clone())
        return logits(hidden)

    monkeypatch.setattr(engine.engine.runner._model, "logits", tapped)
    sampling = {"temperature": 3.0, "top_k": 40, "seed": 5, "logprobs": 4}
    tokens = engine.alone("a", [256, *range(40, 60)], 12, sampling=sampling)
    assert max(one.rank for one in told(engine, "a")) > 4
    for token_id, row, one in zip(tokens, seen, told(engine, "a"), strict=True):
        assert one == token_logprobs(row, [token_id], 4)[0]
        assert one.logprob == pytest.approx(float(reference(row)[0, token_id]), abs=4e-6)


@pytest.mark.parametrize("settings", [{"enforce_eager": True}, {"async_scheduling": True}], ids=["eager", "graphs"])
def test_a_device_tells_what_a_cpu_does(
    rig: Callable, model: Path, settings: dict[str, object], request: pytest.FixtureRequest
) -> None:
    sizes = {"max_model_len": 128, "max_num_seqs": 16, "max_num_batched_tokens": 32}
    expected = submit_all(rig(model, **sizes), together=True)
    device = request.getfixturevalue("device")
    answered = submit_all(rig(model, **sizes, **settings), together=True)
    assert (device.num_replays > 5) == ("async_scheduling" in settings)
    for name, told_there in expected.items():
        for here, there in zip(answered[name], told_there, strict=True):
            assert (here.rank, here.top_ids) == (there.rank, there.top_ids)
            assert [here.logprob, *here.top_logprobs] == pytest.approx([there.logprob, *there.top_logprobs], abs=1e-4)


def test_each_of_several_samples_is_told_its_own(rig: Callable, tiny_llama_dir: Path) -> None:
    engine = rig(tiny_llama_dir)
    engine.submit("a", [256, 7], 6, children=["b"], sampling={"temperature": 2.0, "seed": 1, "logprobs": 0})
    engine.run()
    assert engine.tokens("a") != engine.tokens("b")
    assert told(engine, "a")[0] != told(engine, "b")[0]
    assert [one.top_ids for one in told(engine, "b")] == [[]] * 6


def test_drafts_that_stand_are_told_like_tokens_that_were_drawn(rig: Callable, tiny_gemma3_dir: Path) -> None:
    prompt = [256, *([3, 1, 4, 1, 5, 9, 2, 6] * 5)]
    plain = rig(tiny_gemma3_dir, quantization="int8")
    plain.alone("a", prompt, 100, sampling={"logprobs": 3})
    guessing = rig(tiny_gemma3_dir, quantization="int8", speculative="ngram")
    guessing.alone("a", prompt, 100, sampling={"logprobs": 3})
    assert guessing.stats.accepted_draft_tokens > 0
    assert told(guessing, "a") == told(plain, "a")


def test_ranks_sum_is_of_the_same_values(rig: Callable, tiny_llama_dir: Path) -> None:
    engine = rig(tiny_llama_dir)
    engine.alone("a", [256, 7], 6, sampling={"temperature": 2.0, "seed": 1, "logprobs": 0, "rank": True})
    deltas: list[RequestDelta] = engine.deltas["a"]
    assert [delta.logprob for delta in deltas] == [delta.logprobs[0].logprob for delta in deltas]
    engine.alone("b", [256, 7], 6, sampling={"temperature": 2.0, "seed": 1, "logprobs": 0})
    assert [delta.logprob for delta in engine.deltas["b"]] == [0.0] * 6
