"""The boards as Grafana would load them: ids, places, units, descriptions, colours, links."""

from __future__ import annotations

import re
from typing import Any

import pytest

from server.metrics import catalogue
from server.metrics.catalogue import KV_PAGES
from server.metrics.metric_spec import Label
from server.monitoring import palette
from server.monitoring.boards import BOARDS
from server.monitoring.dashboard import Dashboard, Row
from server.monitoring.dashboard_json import dashboard_model
from server.monitoring.palette import PAGE_STATES
from server.monitoring.panel import Panel, Query, Unit

MODELS = {board.uid: dashboard_model(board) for board in BOARDS}
BUILT_IN = {"__rate_interval", "__range"}

each_board = pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))


def panels(model: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in model["panels"] if panel["type"] != "row"]


def test_there_are_four_boards_whose_uids_stay() -> None:
    assert list(MODELS) == ["octavo-overview", "octavo-kv-memory", "octavo-scheduler", "octavo-latency"]
    assert len({model["title"] for model in MODELS.values()}) == 4


@each_board
def test_ids_are_unique_and_titles_within_a_row_are(model: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in model["panels"]]
    assert ids == list(range(1, len(ids) + 1))
    rows: list[list[str]] = []
    for panel in model["panels"]:
        if panel["type"] == "row":
            rows.append([])
        else:
            rows[-1].append(panel["title"])
    assert all(rows)
    assert all(len(row) == len(set(row)) for row in rows)


@each_board
def test_panels_lie_within_the_grid_overlap_nowhere_and_leave_no_holes(model: dict[str, Any]) -> None:
    cells: set[tuple[int, int]] = set()
    for panel in model["panels"]:
        place = panel["gridPos"]
        own = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert not own & cells, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        cells |= own
    height = max(y for _, y in cells) + 1
    assert {(x, y) for x in range(24) for y in range(height)} - cells == set()


@each_board
def test_every_panel_says_what_it_is_why_one_looks_and_in_which_unit(model: dict[str, Any]) -> None:
    for panel in panels(model):
        assert panel["fieldConfig"]["defaults"]["unit"] in {str(unit) for unit in Unit}, panel["title"]
        sentences = re.split(r"(?<=[.:]) ", panel["description"])
        assert len(sentences) >= 2, panel["title"]
        assert panel["description"].endswith("."), panel["title"]


@each_board
def test_every_query_follows_the_variables(model: dict[str, Any]) -> None:
    assert [variable["name"] for variable in model["templating"]["list"]] == ["datasource", "job", "instance"]
    names = {variable["name"] for variable in model["templating"]["list"]} | BUILT_IN
    for panel in panels(model):
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert [target["refId"] for target in panel["targets"]] == list("ABCDEFGH"[: len(panel["targets"])])
        for target in panel["targets"]:
            promql = target["expr"]
            selectors = re.findall(r"\{[^}]*\}", promql)
            assert selectors, promql
            assert all('job=~"$job", instance=~"$instance"' in selector for selector in selectors), promql
            assert set(re.findall(r"\$(\w+)", promql)) <= names
            assert target["legendFormat"]


@each_board
def test_a_legend_names_only_labels_that_its_query_leaves(model: dict[str, Any]) -> None:
    for panel in panels(model):
        for target in panel["targets"]:
            left = re.match(r"(?:sum|max|min) by \(([^)]*)\)", target["expr"])
            aggregated = re.match(r"(?:sum|max|min|histogram_quantile)\b", target["expr"])
            labels = set(left[1].split(", ")) if left else set() if aggregated else {"instance"}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, panel["title"]


@each_board
def test_thresholds_rise_from_a_base(model: dict[str, Any]) -> None:
    for panel in panels(model):
        base, *steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert base["value"] is None
        values = [step["value"] for step in steps]
        assert values == sorted(set(values)), panel["title"]


@each_board
def test_boards_link_to_each_other_with_variables_and_time(model: dict[str, Any]) -> None:
    (link,) = model["links"]
    assert (link["type"], link["includeVars"], link["keepTime"]) == ("dashboards", True, True)
    assert set(link["tags"]) <= set(model["tags"])


def test_a_page_state_has_one_colour_on_all_boards() -> None:
    colors: dict[str, set[str]] = {state: set() for state in PAGE_STATES}
    for model in MODELS.values():
        for panel in panels(model):
            if not any(KV_PAGES.name + "{" in target["expr"] for target in panel["targets"]):
                continue
            for override in panel["fieldConfig"]["overrides"]:
                state = override["matcher"]["options"].strip("/^")
                colors[state] |= {one["value"]["fixedColor"] for one in override["properties"] if one["id"] == "color"}
    assert colors == {state: {color} for state, color in PAGE_STATES.items()}


@pytest.mark.parametrize(
    ("label", "colors"),
    [
        (catalogue.HOST_STATES, palette.HOST_STATES),
        (catalogue.MISS_REASONS, palette.MISSES),
        (catalogue.OUTCOMES, palette.OUTCOMES),
        (catalogue.PARTS, palette.STEP_PARTS),
        (catalogue.REFUSAL_REASONS, palette.REFUSALS),
        (catalogue.WAIT_REASONS, palette.WAIT_REASONS),
    ],
)
def test_every_value_of_a_label_has_a_colour_of_its_own(label: Label, colors: dict[str, str]) -> None:
    assert set(label.values) == set(colors)
    assert len(set(colors.values())) == len(colors)


def test_every_latency_histogram_of_the_latency_board_has_quantiles_and_the_main_ones_a_heatmap() -> None:
    shown = panels(MODELS["octavo-latency"])
    heatmaps = {panel["targets"][0]["expr"] for panel in shown if panel["type"] == "heatmap"}
    assert len(heatmaps) == 4
    for panel in shown:
        if panel["type"] == "heatmap":
            assert panel["targets"][0]["format"] == "heatmap"
            assert panel["options"]["calculate"] is False
    quantiles = [panel for panel in shown if [t["legendFormat"] for t in panel["targets"]] == ["p50", "p90", "p99"]]
    assert len(quantiles) == 12


def make_panel(width: int, height: int = 8, why: str = "Because.") -> Panel:
    return Panel(
        title=f"{width}x{height}",
        unit=Unit.COUNT,
        about=KV_PAGES,
        why=why,
        queries=(Query("x", "x"),),
        width=width,
        height=height,
    )


def test_a_panel_that_does_not_fit_begins_a_line_below_the_highest() -> None:
    board = Dashboard("uid", "Title", "Why?", (Row("a", (make_panel(12, 4), make_panel(8), make_panel(6))),))
    places = [(place.x, place.y) for _, place in board.layout()]
    assert places == [(0, 0), (0, 1), (12, 1), (0, 9)]


def test_a_panel_without_a_reason_is_no_panel() -> None:
    with pytest.raises(ValueError, match="needs a query, and a reason"):
        make_panel(8, why="")


def test_the_same_boards_make_the_same_model() -> None:
    assert {board.uid: dashboard_model(board) for board in BOARDS} == MODELS
