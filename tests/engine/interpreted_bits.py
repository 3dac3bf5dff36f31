"""The job "bits" of `interpreted_jobs`: bits of logits on the Triton kernels.

Runs the same requests in deterministic mode, in Triton's interpreter, one after the other, then together, in chunks,
and from cached pages. Answers which draws got other logits in which way, and how many tokens came from the cache.
``"deterministic": false`` among the settings shows what there is without.
"""

from __future__ import annotations

import random
from collections import Counter

import torch

from engine.engine import Engine
from engine.messages import EngineRequest
from engine.sampling_params import SamplingParams
from tests.engine.interpreted_steps import build

PROMPT_LENGTHS = (1, 18, 37)
NUM_TOKENS = 3

Logits = dict[tuple[str, int], torch.Tensor]


def run(engine: Engine, *, together: bool) -> Logits:
    """Logits of every draw, by request and number of the draw."""
    drawn: Logits = {}
    numbers: Counter[str] = Counter()
    runner = engine.runner
    take_out = runner._take_out

    def tapped(names: tuple[str, ...], logits: torch.Tensor, *rest: object) -> object:
        for row, name in enumerate(names):
            drawn[name, numbers[name]] = logits[row].clone()
            numbers[name] += 1
        return take_out(names, logits, *rest)

    runner._take_out = tapped
    rng = random.Random(8)
    for number, length in enumerate(PROMPT_LENGTHS):
        prompt = [256, *(rng.randrange(250) for _ in range(length - 1))]
        params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
        engine.submit(EngineRequest(request_id=f"r{number}", prompt_token_ids=prompt, sampling=params))
        while not together and engine.has_work:
            engine.step()
    while engine.has_work:
        engine.step()
    runner._take_out = take_out
    assert len(drawn) == len(PROMPT_LENGTHS) * NUM_TOKENS
    return drawn


def differing(first: Logits, second: Logits) -> list[tuple[str, int]]:
    return [key for key, row in first.items() if not torch.equal(row, second[key])]


def answer(model: str, settings: dict[str, object]) -> dict[str, object]:
    # 64 pages: a layer with a window has its own, and all requests are to be together
    chosen = {"deterministic": True, "max_num_batched_tokens": 64, "num_gpu_blocks_override": 64, **settings}
    alone = run(build(model, **chosen, enable_prefix_caching=False)[0], together=False)
    batch, _ = build(model, **chosen)
    found = {"together": differing(alone, run(batch, together=True))}
    found["cached"] = differing(alone, run(batch, together=True))
    chunked, _ = build(model, **{**chosen, "max_num_batched_tokens": 11})
    found["chunked"] = differing(alone, run(chunked, together=True))
    return {**found, "cached tokens": batch.stats().cached_prompt_tokens}
