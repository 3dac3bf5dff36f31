"""Dashboards as the JSON that Grafana 11 and newer load from files.

It knows Grafana's model and no metric but the one that tells servers apart. Invariants: the same dashboard makes the
same text; ids are by position, so that a link to a panel lives as long as the order of panels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from server.metrics.catalogue import ENGINE_RESTARTS, ENGINE_UP
from server.monitoring.dashboard import Dashboard, Place, Row
from server.monitoring.panel import Kind, Panel, Query, Stacking
from server.monitoring.promql import Level, Scope

SCHEMA_VERSION = 39  # of Grafana 11.0; newer ones bring it up to their own when they load it
TAG = "octavo"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
BOARD = Scope(Level.SELECTION, "$__rate_interval", 'job=~"$job", instance=~"$instance"')
ALERTS_FIRING = 'ALERTS{alertname=~"Octavo.+", alertstate="firing", job=~"$job"}'


def dashboard_text(dashboard: Dashboard) -> str:
    return json.dumps(dashboard_model(dashboard), indent=2, ensure_ascii=False) + "\n"


def dashboard_model(dashboard: Dashboard) -> dict[str, Any]:
    """The whole model of a board."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.question,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "refresh": "10s",
        "links": [_link_to_the_other_boards()],
        "annotations": {"list": list(_annotations())},
        "templating": {"list": list(_variables())},
        "panels": [
            _row(number, item, place) if isinstance(item, Row) else _panel(number, item, place)
            for number, (item, place) in enumerate(dashboard.layout(), 1)
        ],
    }


def _link_to_the_other_boards() -> dict[str, Any]:
    return {
        "type": "dashboards",
        "title": "Octavo",
        "tags": [TAG],
        "icon": "external link",
        "tooltip": "The other boards, for the same servers and time",
        "url": "",
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
    }


def _annotations() -> Iterator[dict[str, Any]]:
    restarts = f"{BOARD.increase(ENGINE_RESTARTS)} > 0"
    for name, color, promql, title in (
        ("Engine restarts", "red", restarts, "engine restarted on {{instance}}"),
        ("Alerts", "orange", ALERTS_FIRING, "{{alertname}}"),
    ):
        yield {
            "name": name,
            "datasource": DATASOURCE,
            "enable": True,
            "hide": False,
            "iconColor": color,
            "expr": promql,
            "step": "15s",
            "titleFormat": title,
            "tagKeys": "instance,severity",
        }


def _variables() -> Iterator[dict[str, Any]]:
    yield {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "refresh": 1,
        "regex": "",
        "skipUrlSync": False,
    }
    up = ENGINE_UP.series[0]
    for name, label, values in (
        ("job", "Job", f"label_values({up}, job)"),
        ("instance", "Instance", f'label_values({up}{{job=~"$job"}}, instance)'),
    ):
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": DATASOURCE,
            "definition": values,
            "query": {"query": values, "refId": f"{name}-values"},
            "allValue": ".+",
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
            "hide": 0,
            "includeAll": True,
            "multi": True,
            "refresh": 2,
            "regex": "",
            "skipUrlSync": False,
            "sort": 1,
        }


def _row(number: int, row: Row, place: Place) -> dict[str, Any]:
    return {
        "id": number,
        "type": "row",
        "title": row.title,
        "collapsed": False,
        "gridPos": _grid_position(place),
        "panels": [],
    }


def _panel(number: int, panel: Panel, place: Place) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind.value,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": _grid_position(place),
        "targets": [_target(position, query, panel) for position, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _field_defaults(panel), "overrides": list(_overrides(panel))},
        "options": _options(panel),
        **_transformations(panel),
    }


def _grid_position(place: Place) -> dict[str, int]:
    return {"x": place.x, "y": place.y, "w": place.width, "h": place.height}


def _target(position: int, query: Query, panel: Panel) -> dict[str, Any]:
    only_now = panel.kind is Kind.TABLE or (panel.kind is Kind.NUMBER and not panel.sparkline)
    return {
        "refId": chr(ord("A") + position),
        "datasource": DATASOURCE,
        "expr": query.promql,
        "legendFormat": query.legend,
        "editorMode": "code",
        "format": {Kind.TABLE: "table", Kind.HEATMAP: "heatmap"}.get(panel.kind, "time_series"),
        "instant": only_now,
        "range": not only_now,
    }


def _field_defaults(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit.value}
    if panel.minimum is not None:
        defaults["min"] = panel.minimum
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    steps: list[dict[str, Any]] = [{"value": None, "color": panel.base}]
    steps += [{"value": threshold.value, "color": threshold.color} for threshold in panel.thresholds]
    defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    defaults["color"] = {"mode": "thresholds" if panel.kind is Kind.NUMBER else "palette-classic"}
    if panel.words:
        words = {value: {"text": text, "index": index} for index, (value, text) in enumerate(panel.words.items())}
        defaults["mappings"] = [{"type": "value", "options": words}]
    match panel.kind:
        case Kind.GRAPH:
            defaults["custom"] = _line_style(panel)
        case Kind.HEATMAP:
            defaults["custom"] = {"scaleDistribution": {"type": "linear"}}
        case Kind.TABLE:
            defaults["custom"] = {"align": "auto", "inspect": False}
    return defaults


def _line_style(panel: Panel) -> dict[str, Any]:
    stacked = panel.stacking is not Stacking.NONE
    return {
        "drawStyle": "line",
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "fillOpacity": 60 if stacked else 8,
        "gradientMode": "none",
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"group": "A", "mode": panel.stacking.value},
        "thresholdsStyle": {"mode": "dashed" if panel.thresholds else "off"},
        "axisPlacement": "auto",
    }


def _overrides(panel: Panel) -> Iterator[dict[str, Any]]:
    if panel.kind is not Kind.GRAPH:
        return
    for legend, color in panel.colors.items():
        is_pattern = legend.startswith("/")
        yield {
            "matcher": {"id": "byRegexp" if is_pattern else "byName", "options": legend},
            "properties": [
                {"id": "color", "value": {"mode": "shades" if is_pattern else "fixed", "fixedColor": color}}
            ],
        }


def _options(panel: Panel) -> dict[str, Any]:
    match panel.kind:
        case Kind.GRAPH:
            many = len(panel.queries) > 1 or "{{" in panel.queries[0].legend
            return {
                "legend": {
                    "displayMode": "table" if many else "list",
                    "placement": "bottom",
                    "showLegend": True,
                    "calcs": ["lastNotNull", "max"] if many else [],
                },
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
        case Kind.NUMBER:
            return {
                "colorMode": "value",
                "graphMode": "area" if panel.sparkline else "none",
                "justifyMode": "auto",
                "orientation": "auto",
                "textMode": "auto",
                "wideLayout": True,
                "showPercentChange": False,
                "percentChangeColorMode": "standard",
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            }
        case Kind.HEATMAP:
            return {
                "calculate": False,
                "cellGap": 1,
                "cellValues": {"unit": "short"},
                "color": {
                    "mode": "scheme",
                    "scheme": "Oranges",
                    "fill": "dark-orange",
                    "scale": "exponential",
                    "exponent": 0.5,
                    "steps": 64,
                    "reverse": False,
                },
                "exemplars": {"color": "rgba(255,0,255,0.7)"},
                "filterValues": {"le": 1e-9},
                "legend": {"show": True},
                "rowsFrame": {"layout": "auto"},
                "showValue": "never",
                "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": True},
                "yAxis": {"axisPlacement": "left", "reverse": False, "unit": panel.unit.value},
            }
        case Kind.TABLE:
            return {"cellHeight": "sm", "frameIndex": 0, "showHeader": True}


def _transformations(panel: Panel) -> dict[str, Any]:
    """A table of an info metric shows its labels; what Prometheus adds and the value 1 say nothing."""
    if panel.kind is not Kind.TABLE:
        return {}
    hidden = dict.fromkeys(("Time", "Value", "__name__", "job"), True)
    order = {name: position for position, name in enumerate(("instance", *panel.about.labels))}
    return {
        "transformations": [
            {"id": "organize", "options": {"excludeByName": hidden, "indexByName": order, "renameByName": {}}}
        ]
    }
