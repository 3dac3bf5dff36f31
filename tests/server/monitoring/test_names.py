"""I01: every metric that a shipped dashboard or rule asks for is one that /metrics exports."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from engine.adapter_messages import AdapterRequests
from server.metrics.catalogue import CATALOGUE
from tests.server.monitoring.promql_names import label_values_name, metric_names

DEPLOY = Path(__file__).parents[3] / "deploy"
OF_PROMETHEUS = {"up", "ALERTS"}  # which it makes itself


def rules() -> list[dict[str, object]]:
    files = sorted((DEPLOY / "prometheus/rules").glob("*.yaml"))
    assert files
    return [rule for path in files for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def names_of_board(board: dict) -> Iterator[str]:
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield from metric_names(target["expr"])
    for annotation in board["annotations"]["list"]:
        yield from metric_names(annotation["expr"])
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield label_values_name(variable["query"]["query"])


def names_asked_for() -> dict[str, set[str]]:
    """Metric names by the file that asks for them, without those that the recording rules make."""
    asked = {
        path.name: set(names_of_board(json.loads(path.read_text())))
        for path in sorted((DEPLOY / "grafana/dashboards").glob("*.json"))
    }
    assert len(asked) == 4
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    asked["rules"] = {name for rule in rules() for name in metric_names(str(rule["expr"]))} - recorded
    return {name: names - OF_PROMETHEUS for name, names in asked.items()}


def test_i01_every_name_asked_for_is_in_the_catalogue() -> None:
    series = {name for spec in CATALOGUE for name in spec.series}
    assert {file: names - series for file, names in names_asked_for().items() if names - series} == {}


async def test_i01_every_name_asked_for_is_exported_after_one_request(
    api, engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the engine of these tests has no process, for which this one stands
    monkeypatch.setattr(type(engine), "pid", property(lambda _: os.getpid()))
    await engine.load_adapter("poet", "/adapters/poet")  # series of adapters are there while there are any
    engine.measured = engine.make_stats(adapter_requests=[AdapterRequests(name="poet", running=0, waiting=0)])
    assert (await api.completion()).status_code == 200
    families = text_string_to_metric_families((await api.http.get("/metrics")).text)
    exported = {sample.name for family in families for sample in family.samples}

    assert {file: names - exported for file, names in names_asked_for().items() if names - exported} == {}


def test_every_recorded_series_is_asked_for_by_the_name_it_has() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    alerts = {name for rule in rules() if "alert" in rule for name in metric_names(str(rule["expr"])) if ":" in name}
    assert alerts <= recorded
