"""Rules as the YAML files that Prometheus reads, and as the table and the runbook of docs/monitoring.md.

It knows no rule. Invariants: the same rules make the same text; quotes are JSON's, which YAML reads alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from server.monitoring.rules.rule import Alert, RecordingRule, RuleGroup

RUNBOOK = "docs/monitoring.md"
HEADER = "# Written by `python -m server.monitoring --write deploy`; change server/monitoring/rules instead."


def rules_yaml(groups: Sequence[RuleGroup]) -> str:
    """A file of rule groups."""
    lines = [HEADER, "groups:"]
    for group in groups:
        lines += [f"  - name: {group.name}", f"    interval: {group.interval}", "    rules:"]
        for rule in group.rules:
            lines += _recording(rule) if isinstance(rule, RecordingRule) else _alert(rule)
    return "\n".join(lines) + "\n"


def alerts_markdown(alerts: Sequence[Alert]) -> str:
    """A table of the alerts, then for each one a section that its runbook link goes to."""
    lines = ["| alert | severity | after | it means |", "|---|---|---|---|"]
    lines += [
        f"| [{alert.name}](#{alert.name.lower()}) | {alert.severity} | {alert.lasting} | {alert.meaning} |"
        for alert in alerts
    ]
    for alert in alerts:
        lines += [
            "",
            f"### {alert.name}",
            "",
            f"{alert.severity.capitalize()}, after {alert.lasting} of:",
            "",
            *(f"    {line}" for line in _broken(alert.promql)),
            "",
            f"{alert.meaning} **Do:** {alert.action} Board: `{alert.board}`.",
        ]
    return "\n".join(lines) + "\n"


def _recording(rule: RecordingRule) -> Iterator[str]:
    yield f"      - record: {rule.name}"
    yield from _expression(rule.promql)
    yield from _mapping("labels", rule.labels)


def _alert(alert: Alert) -> Iterator[str]:
    yield f"      - alert: {alert.name}"
    yield from _expression(alert.promql)
    yield f"        for: {alert.lasting}"
    yield from _mapping("labels", {"severity": alert.severity.value})
    annotations = {
        "summary": alert.summary,
        "description": f"{alert.meaning} {alert.action}",
        "runbook_url": f"{RUNBOOK}#{alert.name.lower()}",
        "dashboard": f"/d/{alert.board}",
    }
    yield from _mapping("annotations", annotations)


def _expression(promql: str) -> Iterator[str]:
    yield "        expr: |-"
    yield from (f"          {line}" for line in _broken(promql))


def _broken(promql: str) -> list[str]:
    """One condition a line."""
    return promql.replace(" and ", "\nand ").split("\n")


def _mapping(name: str, values: Mapping[str, str]) -> Iterator[str]:
    if values:
        yield f"        {name}:"
        yield from (f"          {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
