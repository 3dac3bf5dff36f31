"""Time per token with and without a cache, and along one long text.

With: one request draws token after token, and every step of the engine is timed. Without: the same engine computes the
whole text anew for one more token (a prompt of that length, no prefix found). Sampled at some lengths; sums over all
lengths lie on straight lines between them. Knows engines and seconds, not what is concluded.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from benchmarks.kv_study.fit import Line, fit_line, interpolate
from benchmarks.kv_study.progress import Progress
from benchmarks.kv_study.sizes import Sizes
from benchmarks.kv_study.studied_model import EngineShape, StudiedModel, Windows
from engine.engine import Engine
from engine.messages import EngineRequest
from engine.sampling_params import SamplingParams

WARM_UP_STEPS = 8
BIN = 64  # tokens whose median stands for them


@dataclass(frozen=True, slots=True)
class Recompute:
    """Median seconds for one more token when all ``length`` tokens before it are computed anew."""

    length: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Generation:
    """``seconds[i]``: the step that computed token i + 1 and drew the next. ``windows`` of the layers that did."""

    name: str
    windows: Windows
    seconds: tuple[float, ...]

    def binned(self, start: int = 0, quantile: float = 0.5) -> tuple[list[float], list[float]]:
        """Lengths at the middle of bins from ``start`` tokens on, and a quantile of the seconds in each."""
        starts = range(start, len(self.seconds) - BIN + 1, BIN)
        return [at + BIN / 2 for at in starts], [_quantile(self.seconds[at : at + BIN], quantile) for at in starts]

    def slowest(self) -> float:
        """Seconds that 99 of 100 steps stay below."""
        return _quantile(self.seconds, 0.99)

    def quarter(self, number: int) -> float:
        """Median seconds in a quarter of the text, 0 to 3."""
        size = len(self.seconds) // 4
        return statistics.median(self.seconds[number * size : (number + 1) * size])

    def slope(self, start: int, end: int) -> Line | None:
        """Seconds against length between two lengths; None where these are too near."""
        lengths, seconds = self.binned(start)
        pairs = [(x, y) for x, y in zip(lengths, seconds, strict=True) if x < end]
        return fit_line([x for x, _ in pairs], [y for _, y in pairs]) if len(pairs) > 2 else None


@dataclass(frozen=True, slots=True)
class Timing:
    """``generations[0]`` is of the model as it is; another, where it has windows, of one where all layers see all."""

    recompute: tuple[Recompute, ...]
    generations: tuple[Generation, ...]

    @property
    def longest(self) -> int:
        return min(self.recompute[-1].length, len(self.generations[0].seconds))

    def recompute_seconds(self, length: int) -> float:
        """At any length between the sampled ones."""
        points = self.recompute
        return interpolate([one.length for one in points], [one.seconds for one in points], length)

    def totals(self) -> tuple[list[float], list[float]]:
        """Seconds for a text of 1, 2, .. ``longest`` tokens, without and with a cache."""
        without = accumulate(self.recompute_seconds(length) for length in range(1, self.longest + 1))
        return list(without), list(accumulate(self.generations[0].seconds[: self.longest]))


def _quantile(seconds: Sequence[float], share: float) -> float:
    """On straight lines between the ordered values."""
    ordered = sorted(seconds)
    return interpolate(range(len(ordered)), ordered, share * (len(ordered) - 1))


def measure_timing(studied: StudiedModel, sizes: Sizes, progress: Progress) -> Timing:
    own, everything = studied.windows, (None,) * studied.spec.num_layers
    kinds = [("as the model is", own)] + ([("every layer sees everything", everything)] if own != everything else [])
    lengths = sizes.recompute_lengths
    progress.begin("time per token", sizes.recompute_repeats * sum(lengths) // 4 + len(kinds) * sizes.generated)
    generations = []
    recompute: list[Recompute] = []
    longest = max(sizes.generated + 1, lengths[-1] + 1)
    for name, windows in kinds:
        engine = studied.make_engine(
            studied.load(windows=windows), studied.plan(windows), EngineShape(1, longest, lengths[-1])
        )
        seconds = generate(engine, studied.lead or studied.prose(0, 1), sizes.generated, progress)
        generations.append(Generation(name, windows, tuple(seconds)))
        if not recompute:
            for length in lengths:
                samples = []
                for _ in range(sizes.recompute_repeats):
                    samples.append(recompute_once(engine, studied.prose(0, length)))
                    progress.step(length // 4)
                recompute.append(Recompute(length, statistics.median(samples)))
    return Timing(tuple(recompute), tuple(generations))


def generate(engine: Engine, prompt: list[int], count: int, progress: Progress | None = None) -> list[float]:
    """Seconds of each of ``count`` steps that draw a token from all before it; the first one computes the prompt."""
    recompute_once(engine, prompt, tokens=WARM_UP_STEPS)
    submit(engine, prompt, count)
    seconds = []
    for _ in range(count):
        seconds.append(_step(engine))
        if progress is not None:
            progress.step()
    _require_idle(engine)
    return seconds


def recompute_once(engine: Engine, token_ids: list[int], tokens: int = 1) -> float:
    """Seconds for the next token of a text of which nothing is cached (or for the next few)."""
    submit(engine, token_ids, tokens)
    seconds = sum(_step(engine) for _ in range(tokens))
    _require_idle(engine)
    return seconds


def submit(engine: Engine, prompt: list[int], max_tokens: int, name: str = "text") -> None:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, seed=0)
    engine.submit(EngineRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling))


def _step(engine: Engine) -> float:
    started = time.perf_counter()
    output = engine.step()
    seconds = time.perf_counter() - started
    for delta in output.deltas:
        if delta.failure is not None:
            raise RuntimeError(delta.failure.message)
    return seconds


def _require_idle(engine: Engine) -> None:
    if engine.has_work:
        raise RuntimeError("a text took more steps than it has tokens to draw")
