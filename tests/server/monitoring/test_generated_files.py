"""What is checked in under deploy/ and in docs/monitoring.md is what the catalogue makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.metrics.catalogue import CATALOGUE
from server.monitoring.__main__ import main
from server.monitoring.generated_files import BEGIN, END, GUIDE, generated_files, stale_files, with_alerts

# The boards have the first two in pages, or by state; memory that is only reserved says nothing.
NOT_SHOWN = {
    "octavo_kv_used_bytes",
    "octavo_host_bytes",
    "process_virtual_memory_bytes",
    "octavo_engine_process_virtual_memory_bytes",
}

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"


def test_the_files_checked_in_are_those_that_are_written() -> None:
    assert stale_files(DEPLOY) == []


def test_no_dashboard_and_no_rule_file_is_there_that_nobody_writes() -> None:
    folders = [DEPLOY / "grafana/dashboards", DEPLOY / "prometheus/rules"]
    found = {str(path.relative_to(DEPLOY)) for folder in folders for path in folder.iterdir()}
    assert found == set(generated_files())


def test_write_brings_files_up_to_date_and_check_says_which_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy = tmp_path / "deploy"
    guide = tmp_path / GUIDE
    guide.parent.mkdir()
    guide.write_text(f"before\n{BEGIN}old\n{END}after\n")

    assert main(["--check", str(deploy)]) == 1
    assert main(["--write", str(deploy)]) == 0
    assert main(["--check", str(deploy)]) == 0
    rules = deploy / "prometheus/rules/alerts.yaml"
    rules.write_text(rules.read_text().replace("> 0.1", "> 0.2"))
    capsys.readouterr()

    assert main(["--check", str(deploy)]) == 1
    assert capsys.readouterr().out.startswith(f"{rules} is not what the catalogue makes of it; run: ")
    assert main(["--write", str(deploy)]) == 0
    assert capsys.readouterr().out == f"wrote {rules}\n"
    assert guide.read_text().startswith(f"before\n{BEGIN}\n| alert |")
    assert guide.read_text().endswith(f"{END}after\n")


def test_a_guide_without_a_place_for_the_alerts_is_not_written_over() -> None:
    with pytest.raises(ValueError, match="has no place for the alerts"):
        with_alerts("# Monitoring\n")


def test_files_end_with_a_newline_and_have_no_blanks_at_line_ends() -> None:
    for name, text in generated_files().items():
        assert text.endswith("\n"), name
        assert not any(line != line.rstrip() for line in text.split("\n")), name


def test_every_metric_is_on_a_board_but_those_that_say_nothing_new() -> None:
    boards = "".join(text for name, text in generated_files().items() if name.startswith("grafana"))
    missing = {spec.name for spec in CATALOGUE if not any(series in boards for series in spec.series)}
    assert missing == NOT_SHOWN
