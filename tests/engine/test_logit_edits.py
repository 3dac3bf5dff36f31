"""What changes logits before a draw: exact values against dense arrays, and the tokens of a whole engine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import edited_logits
from engine.edited_logits import EditedLogits
from engine.logit_edits import LogitEditor, NothingAllowed
from engine.sampling_params import SamplingParams
from kernels.cpu.library import best_library

INF = float("inf")


@pytest.fixture(autouse=True, scope="module", params=["native", "torch"])
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """By which rows are masked."""
    if request.param == "native" and best_library() is None:
        pytest.skip("no native library")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setattr(edited_logits, "best_library", lambda: None)
        yield


class Allowing:
    """Allows ``sets[i]`` after i tokens."""

    is_over = False

    def may_end(self) -> bool:
        return False

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


def test_memory_is_that_of_the_tokens_that_occur() -> None:
    sampling = SamplingParams(max_tokens=9, repetition_penalty=1.5, frequency_penalty=0.5, logit_bias={262_143: 1.0})
    editor = LogitEditor(sampling, [5, 9, 5], (), 262_144)
    for token_id in (7, 200_000, 7):
        editor.accept(token_id)
    edit = editor.edit(3)
    assert edit is not None
    assert edit.allowed is None
    assert edit.ids.tolist() == [5, 9, 262_143, 7, 200_000]
    assert edit.scales.tolist() == [1.5, 1.5, 1.0, 1.5, 1.5]
    assert edit.shifts.tolist() == [0.0, 0.0, 1.0, -1.0, -0.5]


@pytest.mark.parametrize(
    ("sampling", "is_needed", "reads_tokens"),
    [
        ({}, False, None),
        ({"temperature": 0.3, "top_k": 5, "stop_token_ids": [3]}, False, None),
        ({"min_tokens": 3}, True, False),
        ({"logit_bias": {4: 1.0}}, True, False),
        ({"repetition_penalty": 1.1}, True, True),
        ({"frequency_penalty": 0.1}, True, True),
        ({"presence_penalty": -0.1}, True, True),
    ],
)
def test_an_editor_is_made_where_something_changes_logits_and_says_what_it_depends_on(
    sampling: dict[str, object], is_needed: bool, reads_tokens: bool | None
) -> None:
    params = SamplingParams(max_tokens=5, **sampling)
    editor = LogitEditor.needed(params, [1, 2], (0,), VOCAB)
    assert (editor is not None) == is_needed
    if editor is not None:
        assert editor.reads_tokens == reads_tokens
    constrained = LogitEditor.needed(params, [1, 2], (0,), VOCAB, Allowing(VOCAB, [{3}]))
    assert constrained is not None
    assert constrained.reads_tokens


def test_there_is_no_edit_where_nothing_changes_any_more_or_yet() -> None:
    late = LogitEditor(SamplingParams(max_tokens=5, min_tokens=2), [1], (0,), VOCAB)
    assert [late.edit(index) is None for index in range(4)] == [False, False, True, True]
    early = LogitEditor(SamplingParams(max_tokens=5, presence_penalty=1.0), [1], (0,), VOCAB)
    assert early.edit(0) is None
    early.accept(1)
    assert early.edit(1) is not None


def test_ids_without_a_logit_touch_no_row() -> None:
    sampling = SamplingParams(max_tokens=5, repetition_penalty=2.0, min_tokens=1)
    editor = LogitEditor(sampling, [1, VOCAB, VOCAB + 3], (0, VOCAB + 1), VOCAB)
    logits = torch.ones(2, VOCAB)
    expected = logits.clone()
    expected[0, 1], expected[0, 0] = 0.5, -INF
    EditedLogits.of({0: editor.edit(0)}, VOCAB, lambda size: torch.full((size,), -1)).apply(logits)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("num_words", [1, 2, 3, 5])
def test_a_mask_ends_where_its_words_end_and_bits_beyond_the_vocabulary_are_nothing(num_words: int) -> None:
    class Words(Allowing):
        def allowed(self) -> np.ndarray:
            return np.full(num_words, -1, dtype=np.int32)

    editor = LogitEditor(SamplingParams(max_tokens=5), [1], (), VOCAB, Words(VOCAB, []))
    logits = torch.randn(3, VOCAB)
    expected = logits.clone()
    expected[1, 32 * num_words :] = -INF
    EditedLogits.of({1: editor.edit(0)}, VOCAB, lambda size: torch.full((size,), -1)).apply(logits)
    assert torch.equal(logits, expected)


def test_infinite_and_missing_logits_of_a_row_stay_its_own() -> None:
    """A forbidden token is minus infinity whatever it was."""
    sampling = SamplingParams(max_tokens=5, repetition_penalty=2.0)
    editor = LogitEditor(sampling, [1, 2, 3], (), 8, Allowing(8, [{1, 2, 3}]))
    logits = torch.tensor([[1.0] * 8, [INF, INF, -INF, float("nan"), INF, -INF, float("nan"), 4.0], [1.0] * 8])
    EditedLogits.of({1: editor.edit(0)}, 8, lambda size: torch.full((size,), -1)).apply(logits)
    nan = float("nan")
    expected = torch.tensor([[1.0] * 8, [-INF, INF, -INF, nan, -INF, -INF, -INF, -INF], [1.0] * 8])
    assert torch.equal(logits.nan_to_num(nan=-7.0), expected.nan_to_num(nan=-7.0))


@pytest.mark.parametrize(
    ("allowed", "ending", "index", "message"),
    [
        (set(), (), 0, "no token may come at place 0 of the output: it has ended"),
        ({3, 64}, (3, 64), 1, "no token may come at place 1 of the output: all that the grammar allows would end it"),
    ],
)
def test_an_edit_that_forbids_everything_is_none(
    allowed: set[int], ending: tuple[int, ...], index: int, message: str
) -> None:
    sampling = SamplingParams(max_tokens=5, min_tokens=2)
    editor = LogitEditor(sampling, [1], ending, VOCAB, Allowing(VOCAB, [allowed]))
    with pytest.raises(NothingAllowed, match=message):
        editor.edit(index)
    if ending:
        assert editor.edit(2) is not None
