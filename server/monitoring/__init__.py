"""Dashboards and rules for Grafana and Prometheus, made of the metric catalogue by ``python -m server.monitoring``.

    promql ──► panel ──► boards/* ──► dashboard_json ──► deploy/grafana/dashboards/*.json
       └─────► rules/* ─────────────► rules/rule_files ─► deploy/prometheus/rules/*.yaml, docs/monitoring.md

Every metric is named by its MetricSpec, so that one which was renamed is an error here and not an empty panel there.
"""
