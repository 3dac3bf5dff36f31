"""Cache size against quality: a text is predicted, and a fact from far back recalled, with less and less of a cache.

Less by a limit on what the full-attention layers may read (``cache_limit``), or by fewer bits in the pages. Perplexity
is of weights in float32, so that nothing but the cache differs; the recall probe is of the weights as they are served.
Every arm reads the same tokens, so arms are compared token by token.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.kv_study.cache_limit import NO_LIMIT, CacheLimit, LimitedBackend
from benchmarks.kv_study.cached_text import CachedText
from benchmarks.kv_study.progress import Progress
from benchmarks.kv_study.sizes import Sizes
from benchmarks.kv_study.studied_model import StudiedModel
from models.model import CausalLM

SINKS = 4
PAGE_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "fp8_e4m3": torch.float8_e4m3fn,
}
EXACT = "float32"
PLACES = ("harbour", "garden", "library", "museum", "station", "castle", "market", "theatre")
SECRETS = ("copper", "winter", "marble", "orange", "silver", "thunder", "velvet", "pepper")
QUESTION_TOKENS = 64  # at most, with what is asked behind it
FIRST_WORDS = 16  # tokens before the fact, so that what sinks keep is none of it
SEED = 8


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of keeping less: a limit on full-attention layers over pages of one dtype.

    ``cache_bytes``: what a sequence of the context keeps, were the limit a cache of that size.
    """

    limit: CacheLimit
    dtype: str
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class Recall:
    """How a fact fares ``distance`` tokens on: log probability of the right word, less the mean of wrong ones, and how
    often it is the likeliest of all of them.
    """

    distance: int
    log_probability: float
    margin: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Score:
    """An arm's outcome: ``losses`` of each scored token in nats, and ``recalls`` by distance."""

    arm: Arm
    losses: tuple[float, ...]
    recalls: tuple[Recall, ...]

    @property
    def perplexity(self) -> float:
        return math.exp(statistics.fmean(self.losses))

    def beyond(self, whole: Score) -> tuple[float, float]:
        """Nats a token more than ``whole`` loses, and their standard error, of pairs."""
        differences = [mine - other for mine, other in zip(self.losses, whole.losses, strict=True)]
        return statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(len(differences))


@dataclass(frozen=True, slots=True)
class Quality:
    """``limited`` arms begin with the whole cache; ``dtypes`` arms have whole caches, and begin with float32.

    ``own_window``: the longest of the other layers. ``blind`` is the right word's mean log probability where the text
    holds no fact at all.
    """

    context: int
    scored: int
    full_layers: int
    own_window: int
    limited: tuple[Score, ...]
    dtypes: tuple[Score, ...]
    blind: float
    trials: int


def measure_quality(studied: StudiedModel, sizes: Sizes, progress: Progress) -> Quality:
    limits = [NO_LIMIT]
    if studied.full_layers:
        limits += [CacheLimit(kept, sinks) for sinks in (0, SINKS) for kept in sizes.limits]
    arms = [arm_of(studied, limit, EXACT, sizes.context) for limit in limits]
    arms += [arm_of(studied, NO_LIMIT, name, sizes.context) for name in PAGE_DTYPES if name != EXACT]
    backend = LimitedBackend(studied.backend)

    progress.begin("perplexity", len(arms) * sizes.texts)
    model = studied.load(backend=backend.as_backend(), exact=True)
    losses = [score_text(studied, model, backend, arm, sizes, progress) for arm in arms]

    progress.begin("recall", (len(arms) + 1) * sizes.recall_trials)
    model = studied.load(backend=backend.as_backend())
    recalls = [recall_facts(studied, model, backend, arm, sizes, progress) for arm in arms]
    blind = recall_facts(studied, model, backend, arms[0], sizes, progress, tells=False)

    scores = [Score(*parts) for parts in zip(arms, losses, recalls, strict=True)]
    return Quality(
        context=sizes.context,
        scored=sizes.texts * sizes.scored,
        full_layers=studied.full_layers,
        own_window=max((window for window in studied.windows if window is not None), default=0),
        limited=tuple(scores[: len(limits)]),
        dtypes=(scores[0], *scores[len(limits) :]),
        blind=statistics.fmean(one.log_probability for one in blind),
        trials=sizes.recall_trials,
    )


def arm_of(studied: StudiedModel, limit: CacheLimit, dtype: str, context: int) -> Arm:
    """With the bytes that it keeps."""
    plan = studied.plan((None,) * studied.spec.num_layers, PAGE_DTYPES[dtype])
    row_bytes = plan.page_bytes // plan.block_size // studied.spec.num_layers
    kept = context if limit.kept is None else min(context, limit.kept)
    rows = sum(kept if window is None else min(context, window) for window in studied.windows)
    return Arm(limit, dtype, rows * row_bytes)


def score_text(
    studied: StudiedModel, model: CausalLM, backend: LimitedBackend, arm: Arm, sizes: Sizes, progress: Progress
) -> tuple[float, ...]:
    """Nats of each of the last ``sizes.scored`` tokens of stretches of the text, each read alone."""
    backend.limit = arm.limit
    reader = CachedText(model, studied.plan(dtype=PAGE_DTYPES[arm.dtype]), sizes.context)
    losses: list[float] = []
    for number in range(sizes.texts):
        lead = studied.lead
        size = sizes.context + 1 - len(lead)  # the last token is predicted, never read
        token_ids = lead + studied.prose(number * size, size)
        log_p = reader.read("text", token_ids[:-1], sizes.context - sizes.scored)
        reader.close("text")
        targets = torch.tensor(token_ids[-sizes.scored :])
        losses += (-log_p.gather(1, targets[:, None])[:, 0]).tolist()
        progress.step()
    return tuple(losses)


def recall_facts(
    studied: StudiedModel,
    model: CausalLM,
    backend: LimitedBackend,
    arm: Arm,
    sizes: Sizes,
    progress: Progress,
    *,
    tells: bool = True,
) -> tuple[Recall, ...]:
    """Tell a password near the beginning of a text, and ask for it further and further on; ``tells`` False: only ask.

    Each question is a fork, so that the text goes on as if it had not been asked.
    """
    backend.limit = arm.limit
    distances = sizes.recall_distances
    reader = CachedText(
        model, studied.plan(dtype=PAGE_DTYPES[arm.dtype]), distances[-1] + FIRST_WORDS + 2 * QUESTION_TOKENS
    )
    draws = random.Random(SEED)
    asked: list[list[tuple[float, float, bool]]] = [[] for _ in distances]
    for number in range(sizes.recall_trials):
        place, right = PLACES[number % len(PLACES)], SECRETS[(3 * number) % len(SECRETS)]
        fact = f"The password of the {place} is {right}.\n\n" if tells else ""
        start_of_text = draws.randrange(10_000)
        told = studied.lead + studied.prose(start_of_text, FIRST_WORDS) + studied.encode(fact)
        text = told + studied.prose(start_of_text + FIRST_WORDS, distances[-1])
        question = f"\n\nThe password of the {place} is"
        end = 0
        for distance, answers in zip(distances, asked, strict=True):
            start, end = end, len(told) + distance
            reader.read("text", text[start:end], end - start)
            scores = ask(studied, reader, question, SECRETS)
            wrong = [score for word, score in scores.items() if word != right]
            answers.append((scores[right], scores[right] - statistics.fmean(wrong), scores[right] > max(wrong)))
        reader.close("text")
        progress.step()
    return tuple(
        Recall(distance, *(statistics.fmean(column) for column in zip(*answers, strict=True)))
        for distance, answers in zip(distances, asked, strict=True)
    )


def ask(studied: StudiedModel, reader: CachedText, question: str, words: Sequence[str]) -> dict[str, float]:
    """Log probability of each word behind what has been read and the question; longer words token by token."""
    token_ids = studied.encode(question)
    reader.fork("text", "question")
    first = reader.read("question", token_ids, len(token_ids) - 1)[0]
    scores = {}
    for word in words:
        continuation = studied.encode(f"{question} {word}")[len(token_ids) :]
        scores[word] = first[continuation[0]].item()
        if len(continuation) > 1:
            reader.fork("question", "word")
            rows = reader.read("word", continuation[:-1], 0)
            reader.close("word")
            scores[word] += rows.gather(1, torch.tensor(continuation[1:])[:, None]).sum().item()
    reader.close("question")
    return scores
