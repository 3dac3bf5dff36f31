"""Which files are made of what, and whether those on disk still are.

Invariants: a path is relative to the folder that is written to; nothing but these files is touched.
"""

from __future__ import annotations

from pathlib import Path

from server.monitoring.boards import BOARDS
from server.monitoring.dashboard_json import dashboard_text
from server.monitoring.rules.alerts import ALERT_GROUPS, ALERTS
from server.monitoring.rules.recording import RECORDING_GROUPS
from server.monitoring.rules.rule_files import alerts_markdown, rules_yaml

BEGIN = "<!-- Written by `python -m server.monitoring --write deploy`: begin -->\n"
END = "<!-- end -->\n"
GUIDE = Path("docs/monitoring.md")  # beside the folder that is written to


def generated_files() -> dict[str, str]:
    """The text of every file of deploy/, by its path in there."""
    files = {f"grafana/dashboards/{board.uid}.json": dashboard_text(board) for board in BOARDS}
    files["prometheus/rules/recording.yaml"] = rules_yaml(RECORDING_GROUPS)
    files["prometheus/rules/alerts.yaml"] = rules_yaml(ALERT_GROUPS)
    return files


def with_alerts(guide: str) -> str:
    """The guide with the alerts between its two marks. Raises ValueError where it has no such marks."""
    before, begin, rest = guide.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{GUIDE} has no place for the alerts: {BEGIN.strip()} ... {END.strip()}")
    return f"{before}{begin}\n{alerts_markdown(ALERTS)}\n{end}{after}"


def expected_files(deploy: Path) -> dict[Path, str]:
    """What each file should be: those in ``deploy``, and the guide beside it, where there is one."""
    files = {deploy / name: text for name, text in generated_files().items()}
    guide = deploy.parent / GUIDE
    if guide.exists():
        files[guide] = with_alerts(guide.read_text())
    return files


def stale_files(deploy: Path) -> list[Path]:
    """Files that are missing or other than they should be."""
    expected = expected_files(deploy)
    return [path for path, text in expected.items() if not path.exists() or path.read_text() != text]


def write_files(deploy: Path) -> list[Path]:
    """Bring the files up to date; those that changed."""
    expected = expected_files(deploy)
    stale = stale_files(deploy)
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(expected[path])
    return stale
