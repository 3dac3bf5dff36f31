from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from benchmarks.workload import COMMON_WORDS, WORKLOADS, TokenPrompts, WordPrompts, Workload, make_prompts

SMALL = Workload(name="small", requests=3, concurrency=1, input_tokens=20, output_tokens=1, shared_tokens=12)


def tokenizer_file(folder: Path, words: tuple[str, ...]) -> Path:
    tokenizer = Tokenizer(WordLevel({"<bos>": 0, "<unk>": 1} | {word: i + 2 for i, word in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_prompts_have_the_wanted_length_with_the_tokens_that_a_server_adds() -> None:
    prompts = make_prompts(SMALL, WordPrompts(special_tokens=1), seed=0)

    assert [len(str(prompt).split()) for prompt in prompts] == [19, 19, 19]


def test_prompts_share_the_wanted_prefix_and_differ_after_it() -> None:
    first, second, third = (
        str(prompt).split() for prompt in make_prompts(SMALL, WordPrompts(special_tokens=1), seed=0)
    )

    assert first[:11] == second[:11] == third[:11]
    assert len({first[11], second[11], third[11]}) > 1


def test_a_seed_repeats_its_prompts_and_another_shares_no_prefix() -> None:
    source = WordPrompts()

    assert make_prompts(SMALL, source, seed=1) == make_prompts(SMALL, source, seed=1)
    assert (
        str(make_prompts(SMALL, source, seed=1)[0]).split()[:4]
        != str(make_prompts(SMALL, source, seed=2)[0]).split()[:4]
    )


def test_jitter_stays_within_its_bounds_and_is_used() -> None:
    lengths = {len(str(prompt).split()) for prompt in make_prompts(WORKLOADS["W3"], WordPrompts(), seed=0)}

    assert min(lengths) >= 112
    assert max(lengths) <= 144
    assert len(lengths) > 10


def test_token_prompts_are_exact_and_start_as_the_tokenizer_starts_them(tmp_path: Path) -> None:
    source = TokenPrompts.from_file(tokenizer_file(tmp_path, COMMON_WORDS))

    prompts = make_prompts(SMALL, source, seed=0)

    assert source.special_tokens == 1
    assert [len(prompt) for prompt in prompts] == [20, 20, 20]
    assert all(prompt[0] == 0 and 1 not in prompt for prompt in prompts)


def test_a_tokenizer_without_common_words_is_refused(tmp_path: Path) -> None:
    path = tokenizer_file(tmp_path, COMMON_WORDS[:49])

    with pytest.raises(ValueError, match="only 49 common words are one token"):
        TokenPrompts.from_file(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"requests": 0}, "requests must be at least 1, not 0"),
        ({"output_tokens": -1}, "output_tokens must be at least 1, not -1"),
        ({"shared_tokens": -1}, "must not be negative"),
        ({"shared_tokens": 20}, r"input_tokens \(20\) must exceed"),
        ({"input_jitter": 8}, r"input_tokens \(20\) must exceed shared_tokens \+ input_jitter \(12 \+ 8\)"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(changes: dict[str, int], message: str) -> None:
    shape = {"requests": 3, "concurrency": 1, "input_tokens": 20, "output_tokens": 1, "shared_tokens": 12}

    with pytest.raises(ValueError, match=message):
        Workload(name="small", **(shape | changes))


def test_the_named_workloads_are_the_ones_that_results_are_quoted_for() -> None:
    shapes = {
        name: (w.requests, w.concurrency, w.input_tokens, w.input_jitter, w.output_tokens, w.shared_tokens)
        for name, w in WORKLOADS.items()
    }

    assert shapes == {
        "W1": (4, 1, 128, 0, 128, 0),
        "W2": (16, 8, 256, 0, 128, 0),
        "W3": (64, 32, 128, 16, 64, 0),
        "W4": (24, 4, 1056, 0, 32, 1024),
        "W5": (1, 1, 4000, 0, 64, 0),
    }
