"""What changes logits before a draw: exact values against dense arrays, and the tokens of a whole engine."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.edited_logits import EditedLogits
from engine.logit_edits import LogitEditor
from engine.sampling_params import SamplingParams

INF = float("inf")


class Allowing:
    """Allows ``sets[i]`` after i tokens."""

    def __init__(self, vocab_size: int, sets: list[set[int] | None]) -> None:
        self.vocab_size = vocab_size
        self.sets = sets
        self.accepted: list[int] = []

    def allowed(self) -> np.ndarray | None:
        tokens = self.sets[len(self.accepted) % len(self.sets)]
        if tokens is None:
            return None
        words = [sum(1 << bit for bit in range(32) if 32 * word + bit in tokens) for word in range(self.words)]
        return np.array(words, dtype=np.uint32).view(np.int32)

    @property
    def words(self) -> int:
        return -(-self.vocab_size // 32)

    def accept(self, token_id: int) -> None:
        self.accepted.append(token_id)


def dense(
    logits: torch.Tensor,
    sampling: SamplingParams,
    prompt: list[int],
    output: list[int],
    ending: set[int],
    allowed: set[int] | None,
) -> torch.Tensor:
    """The rule over the whole vocabulary, as `SamplingParams` states it."""
    vocab_size = len(logits)
    counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=vocab_size).double()
    seen = torch.bincount(torch.tensor([*prompt, *output]), minlength=vocab_size) > 0
    bias = torch.tensor([sampling.logit_bias.get(one, 0.0) for one in range(vocab_size)], dtype=torch.float64)
    penalty = torch.where(seen, sampling.repetition_penalty, 1.0).float()
    logits = torch.where(logits > 0, logits / penalty, logits * penalty)
    added = bias - sampling.frequency_penalty * counts - sampling.presence_penalty * (counts > 0).double()
    logits = logits + added.float()
    forbidden = ending if len(output) < sampling.min_tokens else set()
    for token_id in range(vocab_size):
        if token_id in forbidden or (allowed is not None and token_id not in allowed):
            logits[token_id] = -INF
    return logits


def edited(logits: torch.Tensor, editors: list[LogitEditor], output_index: list[int]) -> torch.Tensor:
    edits = {row: edit for row, one in enumerate(editors) if (edit := one.edit(output_index[row])) is not None}
    changed = logits.clone()
    EditedLogits.of(edits, logits.shape[1], lambda size: torch.full((size,), -1)).apply(changed)
    return changed


penalties = st.sampled_from([-2.0, -0.3, 0.0, 0.0, 0.1, 1.7])
VOCAB = 70


@st.composite
def sequences(draw: st.DrawFn) -> tuple:
    tokens = st.integers(0, VOCAB - 1)
    sampling = SamplingParams(
        max_tokens=40,
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3, 0.7, 2.0])),
        frequency_penalty=draw(penalties),
        presence_penalty=draw(penalties),
        logit_bias=draw(st.dictionaries(tokens, st.floats(-100, 100, width=32), max_size=4)),
        min_tokens=draw(st.sampled_from([0, 0, 3, 9])),
        stop_token_ids=draw(st.lists(tokens, max_size=2)),
    )
    ending = {*sampling.stop_token_ids, draw(tokens)}
    some = st.sets(tokens, min_size=1).map(lambda few: few | (set(range(VOCAB)) - ending))
    sets = draw(st.none() | st.lists(st.none() | some, min_size=1, max_size=3))
    prompt = draw(st.lists(tokens, min_size=1, max_size=8))
    output = draw(st.lists(st.sampled_from([0, 1, 2, *range(VOCAB)]), max_size=30))
    return sampling, prompt, output, ending, sets


@settings(max_examples=150, deadline=None, derandomize=True)
@given(rows=st.lists(sequences(), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_edited_rows_have_the_bits_of_the_dense_rule_at_every_token(rows: list[tuple], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(rows), VOCAB, generator=generator) * 5
    constraints = [None if sets is None else Allowing(VOCAB, sets) for *_, sets in rows]
    editors = [
        LogitEditor(sampling, prompt, ending, VOCAB, constraint)
        for (sampling, prompt, _, ending, _), constraint in zip(rows, constraints, strict=True)
    ]
    for index in range(max(len(output) for _, _, output, _, _ in rows) + 1):
        done = [min(index, len(output)) for _, _, output, _, _ in rows]
        expected = [
            dense(row, sampling, prompt, output[:count], ending, None if sets is None else sets[count % len(sets)])
            for row, count, (sampling, prompt, output, ending, sets) in zip(logits, done, rows, strict=True)
        ]
        assert torch.equal(edited(logits, editors, done), torch.stack(expected))
        for editor, (_, _, output, _, _) in zip(editors, rows, strict=True):
            if index < len(output):
                editor.accept(output[index])
