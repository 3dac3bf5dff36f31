"""Colours, the same on every board: a page state, an outcome or a reason keeps its colour wherever it is drawn.

Named colours of Grafana, which it adapts to light and dark. Green is for what is well, red for what is lost, so that
only trouble looks like trouble.
"""

from __future__ import annotations

from collections.abc import Mapping

GOOD, WARN, BAD, CALM, PLAIN = "green", "orange", "red", "blue", "text"

PAGE_STATES: Mapping[str, str] = {"free": "super-light-green", "cached": "blue", "held": "orange"}
HOST_STATES: Mapping[str, str] = {"free": "super-light-green", "prefix": "blue", "swapped": "purple"}
OUTCOMES: Mapping[str, str] = {"stop": "green", "length": "blue", "abort": "yellow", "error": "red"}
WAIT_REASONS: Mapping[str, str] = {
    "pages": "red",
    "sequences": "orange",
    "tokens": "yellow",
    "preemption": "purple",
    "behind": "blue",
    "grammar": "green",
}
STEP_PARTS: Mapping[str, str] = {"schedule": "purple", "model": "blue", "sample": "green", "output": "orange"}
QUANTILES: Mapping[str, str] = {"p50": "green", "p90": "orange", "p99": "red"}
REFUSALS: Mapping[str, str] = {"queue_full": "red", "queue_timeout": "orange", "timeout": "purple"}
MISSES: Mapping[str, str] = {
    "never_seen": "blue",
    "evicted": "red",
    "too_short": "yellow",
    "salt": "purple",
    "disabled": "orange",
}
