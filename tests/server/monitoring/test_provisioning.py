"""What Grafana and Prometheus are told at start fits together, and with where compose.yaml mounts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[3] / "deploy"


def load(path: str) -> Any:
    return yaml.safe_load((DEPLOY / path).read_text())


SERVICES = load("compose.yaml")["services"]


def test_the_data_source_is_the_prometheus_of_compose_and_knows_how_often_it_scrapes() -> None:
    (source,) = load("grafana/provisioning/datasources/prometheus.yaml")["datasources"]

    assert source["type"] == "prometheus"  # what the boards' variable offers
    host, _, port = source["url"].removeprefix("http://").partition(":")
    assert any(str(published).endswith(f":{port}") for published in SERVICES[host]["ports"])
    assert source["jsonData"]["timeInterval"] == load("prometheus/prometheus.yml")["global"]["scrape_interval"]


def test_grafana_finds_the_boards_where_they_are_mounted() -> None:
    (provider,) = load("grafana/provisioning/dashboards/octavo.yaml")["providers"]
    mounts = dict(str(volume).split(":")[:2] for volume in SERVICES["grafana"]["volumes"])

    assert mounts["./grafana/dashboards"] == provider["options"]["path"] == "/var/lib/grafana/dashboards"
    assert mounts["./grafana/provisioning"] == "/etc/grafana/provisioning"


def test_prometheus_finds_its_rules_beside_its_configuration() -> None:
    mounts = dict(str(volume).split(":")[:2] for volume in SERVICES["prometheus"]["volumes"])

    assert mounts["./prometheus"] == "/etc/prometheus"
    assert load("prometheus/prometheus.yml")["rule_files"] == ["rules/*.yaml"]
    (job,) = load("prometheus/prometheus.yml")["scrape_configs"]
    assert "octavo" in job["job_name"]  # or the alert OctavoDown does not see it
