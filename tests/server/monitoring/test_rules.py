"""The rules as Prometheus reads them, and when each alert fires. promtool comes with Debian's package prometheus."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from server import flags
from server.metrics.catalogue import TTFT
from server.monitoring.boards import BOARDS
from server.monitoring.objectives import TTFT_OBJECTIVE, Objective
from server.monitoring.rules.alerts import ALERTS, burn_alerts
from server.monitoring.rules.recording import RECORDING_GROUPS
from server.monitoring.rules.rule import RecordingRule, Severity

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "deploy" / "prometheus"
TESTS = sorted((PROMETHEUS / "tests").glob("*.yaml"))
PROMTOOL = shutil.which("promtool")

FLAGS_OF = (
    flags.add_model_flags,
    flags.add_server_flags,
    flags.add_engine_flags,
    flags.add_scheduling_flags,
)

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool: install Debian's package prometheus")


def promtool(*arguments: str) -> str:
    finished = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, timeout=240)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout + finished.stderr


@needs_promtool
def test_i05_promtool_accepts_every_rule() -> None:
    told = promtool("check", "rules", *map(str, sorted((PROMETHEUS / "rules").glob("*.yaml"))))

    counts = sorted(map(int, re.findall(r"SUCCESS: (\d+) rules found", told)))
    assert counts == sorted([len(ALERTS), sum(len(group.rules) for group in RECORDING_GROUPS)])


@needs_promtool
def test_promtool_accepts_the_configuration_and_finds_both_rule_files() -> None:
    assert "SUCCESS: 2 rule files found" in promtool("check", "config", str(PROMETHEUS / "prometheus.yml"))


@needs_promtool
@pytest.mark.slow
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_alerts_fire_when_they_should_and_only_then(path: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", str(path))


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_nothing_does() -> None:
    tests = [test for path in TESTS for test in yaml.safe_load(path.read_text())["tests"]]
    fired = {
        re.search(r'alertname="(\w+)"', sample["labels"])[1]  # type: ignore[index]
        for test in tests
        for question in test.get("promql_expr_test", ())
        for sample in question["exp_samples"]
    }
    assert fired == {alert.name for alert in ALERTS}

    quiet = [test for test in tests if test["name"].endswith("quiet")]
    assert len(quiet) >= 20
    assert all(question["exp_samples"] == [] for test in quiet for question in test["promql_expr_test"])


def test_names_of_alerts_and_of_recorded_series_are_unique() -> None:
    names = [alert.name for alert in ALERTS]
    assert len(names) == len(set(names))
    recorded = [(rule.name, *rule.labels.items()) for group in RECORDING_GROUPS for rule in group.rules]  # type: ignore[union-attr]
    assert len(recorded) == len(set(recorded))


def test_every_alert_says_what_is_wrong_and_what_to_do_and_opens_a_board() -> None:
    boards = {board.uid for board in BOARDS}
    for alert in ALERTS:
        assert alert.board in boards
        assert alert.severity in Severity
        for text in (alert.summary, alert.meaning, alert.action):
            assert re.fullmatch(r"[A-Z{].+\.", text), alert.name
        if "sum" not in alert.promql and "service:" not in alert.promql:
            assert "$labels.instance" in alert.summary, alert.name


def test_every_runbook_link_goes_to_a_section_of_the_guide() -> None:
    guide = (ROOT / "docs" / "monitoring.md").read_text()
    titles = re.findall(r"^#+ (.+)$", guide, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    rules = yaml.safe_load((PROMETHEUS / "rules" / "alerts.yaml").read_text())["groups"]
    links = [rule["annotations"]["runbook_url"] for group in rules for rule in group["rules"]]

    assert len(links) == len(ALERTS)
    for link in links:
        page, _, anchor = link.partition("#")
        assert page == "docs/monitoring.md"
        assert anchor in anchors


def test_every_flag_named_in_a_panel_or_an_alert_is_one_of_octavo_serve() -> None:
    texts = [panel.why for board in BOARDS for panel in board.panels]
    texts += [text for alert in ALERTS for text in (alert.meaning, alert.action)]
    named = {flag for text in texts for flag in re.findall(r"--[a-z][a-z-]+", text)}

    parser = argparse.ArgumentParser()
    for add_flags in FLAGS_OF:
        add_flags(parser)
    assert named
    assert named - set(parser._option_string_actions) == set()


def test_an_objective_that_is_no_bucket_is_an_error() -> None:
    with pytest.raises(ValueError, match=f"{TTFT.name} has no bucket that ends at 3"):
        burn_alerts(Objective("TTFT", TTFT, 3, 0.99))


def test_a_stricter_objective_moves_the_thresholds() -> None:
    fast, slow = burn_alerts(Objective("TTFT", TTFT, 2, 0.999))
    assert fast.promql.count("> 0.0144") == 2
    assert slow.promql.count("> 0.006") == 2
    assert TTFT_OBJECTIVE.budget == 0.01


def test_a_recorded_name_says_level_metric_and_operation() -> None:
    with pytest.raises(ValueError, match="octavo_waiting is no level:metric:operation"):
        RecordingRule("octavo_waiting", "sum(x)")
