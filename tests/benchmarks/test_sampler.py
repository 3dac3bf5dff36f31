"""The sampler's benchmark measures samplers that agree, and prints a line for every case and batch."""

from __future__ import annotations

import pytest
import torch

from benchmarks import sampler
from engine.logprobs import LogprobTable
from engine.sampler import Sampler, uniform_draw


@pytest.mark.parametrize("case", sampler.CASES)
def test_what_is_compared_with_draws_the_same_tokens(case: str) -> None:
    logits = 3 * torch.randn(20, 500, generator=torch.Generator().manual_seed(0))
    draws = [uniform_draw(1, index) for index in range(20)]
    params = sampler.CASES[case]
    tokens = sampler.sort_and_draw(logits, params, torch.tensor(draws)).tolist()
    assert tokens == Sampler().sample(logits, [params] * 20, draws)


@pytest.mark.parametrize("num_top", sampler.NUMS_TOP)
def test_what_is_compared_with_tells_the_same_log_probabilities(num_top: int) -> None:
    logits = 3 * torch.randn(20, 500, generator=torch.Generator().manual_seed(0))
    token_ids = torch.arange(0, 500, 25)
    told = LogprobTable.of(logits, token_ids, num_top)
    own, top, top_ids, ranks = sampler.log_softmax_and_topk(logits, token_ids, num_top)
    assert torch.allclose(told.values, torch.cat((own, top), dim=1), rtol=1e-5, atol=1e-5)
    assert torch.equal(told.top_ids, top_ids)
    assert torch.equal(told.ranks, ranks)


def test_a_line_for_every_case_and_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert sampler.main(["--vocab-size", "300", "--batches", "1,2", "--repeats", "1"]) == 0
    lines = [line.split(" | ")[:2] for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    expected = [
        [f"| {case}", batch]
        for head, cases in (
            ("parameters", sampler.CASES),
            ("edits", sampler.EDITS),
            ("most likely tokens told", map(str, sampler.NUMS_TOP)),
        )
        for case, batch in [(head, "batch"), *((case, batch) for case in cases for batch in ("1", "2"))]
    ]
    assert lines == expected
