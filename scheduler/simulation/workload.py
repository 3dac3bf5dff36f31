"""Workload: a trace that is drawn instead of read, the same for the same seed, one request at a time.

Arrivals are a Poisson process. Lengths are lognormal, many short ones and few long ones, rounded to whole tokens and at
least 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

from scheduler.simulation.trace import TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """``num_requests`` requests, ``rate`` a second on average; means in tokens.

    ``length_sigma`` is the standard deviation of the lengths' logarithm. Clients allow ``max_tokens`` (None: four
    times the mean), and answers end there at the latest. ``prefix_share`` of the requests, 0 to 1, begin with the
    ``prefix_tokens`` tokens of one of ``num_prefixes`` prefixes, as far as their prompt goes. ``tenants`` are names
    with their parts of the traffic.
    """

    num_requests: int
    rate: float
    mean_prompt: float
    mean_output: float
    length_sigma: float = 0.8
    max_tokens: int | None = None
    prefix_share: float = 0.0
    num_prefixes: int = 1
    prefix_tokens: int = 128
    tenants: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0

    def __iter__(self) -> Iterator[TraceRequest]:
        """Draw the requests anew, from the first."""
        random = Random(self.seed)
        max_tokens = self.max_tokens or max(1, round(4 * self.mean_output))
        names, parts = list(self.tenants), list(self.tenants.values())
        now = 0.0
        for _ in range(self.num_requests):
            now += random.expovariate(self.rate)
            prompt_tokens = self._length(random, self.mean_prompt)
            output_tokens = min(max_tokens, self._length(random, self.mean_output))
            prefix_id, prefix_tokens = None, 0
            if random.random() < self.prefix_share:
                prefix_id = f"prefix {random.randrange(self.num_prefixes)}"
                prefix_tokens = min(self.prefix_tokens, prompt_tokens)
            tenant = random.choices(names, parts)[0] if names else ""
            yield TraceRequest(now, prompt_tokens, output_tokens, max_tokens, prefix_id, prefix_tokens, tenant)

    def _length(self, random: Random, mean: float) -> int:
        """The mean of a lognormal is exp(mu + sigma^2 / 2)."""
        mu = math.log(mean) - self.length_sigma**2 / 2
        return max(1, round(random.lognormvariate(mu, self.length_sigma)))
