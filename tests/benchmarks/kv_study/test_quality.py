"""Bytes of arms, sums over tokens, and questions whose answers are longer than a token."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from benchmarks.kv_study.cache_limit import NO_LIMIT, CacheLimit
from benchmarks.kv_study.cached_text import CachedText
from benchmarks.kv_study.quality import Arm, Recall, Score, arm_of, ask
from benchmarks.kv_study.quality_section import reach
from benchmarks.kv_study.studied_model import StudiedModel
from benchmarks.kv_study.study import Study


@pytest.mark.parametrize(
    ("limit", "dtype", "rows", "row_bytes"),
    [
        (NO_LIMIT, "float32", 6 * 32 + 96, 2 * 32 * 4),
        (CacheLimit(16, 4), "float32", 6 * 32 + 16, 2 * 32 * 4),
        (CacheLimit(500), "bfloat16", 6 * 32 + 96, 2 * 32 * 2),
        (NO_LIMIT, "int8", 6 * 32 + 96, 2 * (32 + 4)),
        (NO_LIMIT, "fp8_e4m3", 6 * 32 + 96, 2 * (32 + 4)),
    ],
)
def test_an_arm_takes_what_its_layers_keep(
    studied: StudiedModel, limit: CacheLimit, dtype: str, rows: int, row_bytes: int
) -> None:
    """Six layers see 32 positions, one all of 96; keys and values of one head of 32."""
    assert arm_of(studied, limit, dtype, 96).cache_bytes == rows * row_bytes


def test_losses_are_compared_token_by_token() -> None:
    arm = Arm(NO_LIMIT, "float32", 1)
    whole, less = Score(arm, (1.0, 2.0, 3.0), ()), Score(arm, (1.5, 2.5, 4.5), ())
    assert whole.perplexity == pytest.approx(math.exp(2))
    difference, error = less.beyond(whole)
    assert difference == pytest.approx(2.5 / 3)
    assert error == pytest.approx(math.sqrt((1 / 3) / 3))


def test_an_answer_of_several_tokens_has_the_log_probability_of_all_of_them(studied: StudiedModel) -> None:
    reader = CachedText(studied.load(), studied.plan(), 200)
    text = studied.prose(0, 40)
    reader.read("text", text, 40)
    found = ask(studied, reader, "the page is", ("copper",))
    usage = reader.blocks.usage()
    reader.close("text")

    question, answer = studied.encode("the page is"), studied.encode(" copper")
    assert len(answer) > 1
    rows = reader.read("whole", text + question + answer, 0)[len(text) + len(question) - 1 : -1]
    expected = rows.gather(1, torch.tensor(answer)[:, None]).sum().item()
    assert found == {"copper": pytest.approx(expected, abs=1e-3)}
    assert usage.held < usage.total


def test_every_arm_scores_the_same_tokens_and_limits_matter(study: Study) -> None:
    quality = study.quality
    assert [(one.arm.limit.kept, one.arm.limit.sinks) for one in quality.limited] == [
        (None, 0),
        (16, 0),
        (48, 0),
        (16, 4),
        (48, 4),
    ]
    assert [one.arm.dtype for one in quality.dtypes] == ["float32", "bfloat16", "int8", "fp8_e4m3"]
    assert {len(one.losses) for one in (*quality.limited, *quality.dtypes)} == {quality.scored}
    assert all(one.losses != quality.limited[0].losses for one in quality.limited[1:])
    assert [one.distance for one in quality.limited[0].recalls] == [20, 40, 60]


def test_facts_in_reach_of_a_window_are_told_from_those_beyond(study: Study) -> None:
    def score(kept: int, sinks: int, *accuracies: float) -> Score:
        recalls = [Recall(at, -1.0, 0.0, right) for at, right in zip((60, 100, 128), accuracies, strict=True)]
        return Score(Arm(CacheLimit(kept, sinks), "float32", 1), (1.0, 2.0), tuple(recalls))

    # 60 + 32 fits into 128 and into 124; 100 is in neither; 128 is beyond both, and beyond the other layers' 32
    limited = (study.quality.limited[0], score(128, 0, 1.0, 0.9, 0.2), score(128, 4, 0.8, 0.9, 0.0))
    assert reach(dataclasses.replace(study.quality, limited=limited)) == (0.9, 0.1)
    assert reach(dataclasses.replace(study.quality, limited=limited[:1])) == (None, None)
    assert reach(dataclasses.replace(study.quality, limited=limited, own_window=129)) == (0.9, None)
