"""RecordingRule and Alert: what Prometheus evaluates, apart from the files it reads it from.

Invariants: a recorded name says level, metric and operation, with colons between them; an alert says what is wrong, why
it matters and what to do.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field


class Severity(enum.StrEnum):
    """CRITICAL wakes somebody, WARNING is looked at in working hours."""

    CRITICAL = "critical"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class RecordingRule:
    """``name`` is what others query; ``labels`` tell rules of one name apart."""

    name: str
    promql: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z_]+:[a-z0-9_]+:[a-z0-9_]+", self.name):
            raise ValueError(f"{self.name} is no level:metric:operation")

    @property
    def selector(self) -> str:
        """What selects this rule's own series."""
        labels = ", ".join(f'{name}="{value}"' for name, value in self.labels.items())
        return f"{self.name}{{{labels}}}" if labels else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """``promql`` has to return something for ``lasting`` before it fires.

    ``summary`` is one line with ``{{ $labels.x }}`` and ``{{ $value }}``; ``meaning`` says what happens to users, and
    ``action`` what to do. ``board`` is the uid of the dashboard to open.
    """

    name: str
    promql: str
    lasting: str
    severity: Severity
    summary: str
    meaning: str
    action: str
    board: str

    def __post_init__(self) -> None:
        if not self.name.startswith("Octavo"):
            raise ValueError(f"the alert {self.name} does not say whose it is")


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules that are evaluated one after the other, every ``interval``."""

    name: str
    interval: str
    rules: tuple[RecordingRule | Alert, ...]
