"""Boards as Grafana reads them. `python -m deploy.monitor.grafana` writes deploy/prometheus/grafana/dashboards/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deploy.monitor.boards import BOARDS
from deploy.monitor.panels import Board, Panel

FOLDER = Path(__file__).parents[1] / "prometheus" / "grafana"
DASHBOARDS = FOLDER / "dashboards"
PAGE_WIDTH, PANEL_HEIGHT, STAT_HEIGHT = 24, 7, 4
SOURCE = {"type": "prometheus", "uid": "${source}"}
SCHEMA = 39
"""Schema version of Grafana 11's dashboards. Later versions migrate it when they load a dashboard."""

_OPTIONS: dict[str, dict[str, Any]] = {
    "heatmap": {
        "calculate": False, "showValue": "never", "legend": {"show": True},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "fill": "dark-orange",
                  "reverse": False},
        "tooltip": {"mode": "single", "yHistogram": False}},
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "textMode": "value",
        "graphMode": "area", "colorMode": "value", "justifyMode": "auto", "orientation": "auto", "wideLayout": True,
        "percentChangeColorMode": "standard", "showPercentChange": False},
    "timeseries": {
        "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"}},
}
"""Kind of panel -> the options that the published schema (npm: @grafana/schema, 11 and 13) requires."""


def dashboard(board: Board) -> dict[str, Any]:
    """Returns a board as Grafana's JSON."""
    return {
        "uid": f"gagpo-{board.name}", "title": board.title, "tags": ["gagpo"], "schemaVersion": SCHEMA, "version": 1,
        "editable": True, "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
        "links": [{"type": "dashboards", "tags": ["gagpo"], "title": "gagpo", "asDropdown": False,
                   "includeVars": True, "keepTime": True, "targetBlank": False, "icon": "dashboard", "tooltip": "",
                   "url": ""}],
        "templating": {"list": [
            {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
            {"name": "run", "label": "Run", "type": "query", "datasource": SOURCE, "refresh": 2, "sort": 1,
             "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
             "query": {"query": "label_values(gagpo_controller_state, run)", "refId": "run"}},
        ]},
        "panels": _placed(board),
    }


def _placed(board: Board) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for row in board.rows:
        panels.append({"type": "row", "title": row.title, "id": len(panels) + 1, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": top, "w": PAGE_WIDTH, "h": 1}})
        top, left, height = top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > PAGE_WIDTH:
                top, left, height = top + height, 0, 0
            tall = STAT_HEIGHT if panel.kind == "stat" else PANEL_HEIGHT
            place = {"x": left, "y": top, "w": panel.width, "h": tall}
            panels.append({**_drawn(panel), "id": len(panels) + 1, "gridPos": place})
            left, height = left + panel.width, max(height, tall)
        top += height
    return panels


def _drawn(panel: Panel) -> dict[str, Any]:
    form = "heatmap" if panel.kind == "heatmap" else "time_series"
    targets = [{"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query.expr, "legendFormat": query.legend,
                "format": form} for index, query in enumerate(panel.queries)]
    return {
        "type": panel.kind, "title": panel.title, "description": panel.help, "datasource": SOURCE, "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": _custom(panel)}, "overrides": []},
        "options": _options(panel),
    }


def _custom(panel: Panel) -> dict[str, Any]:
    if panel.kind != "timeseries":
        return {}
    stacking = {"mode": "normal" if panel.stacked else "none"}
    return {"fillOpacity": 40 if panel.stacked else 8, "showPoints": "never", "spanNulls": 60_000, "stacking": stacking}


def _options(panel: Panel) -> dict[str, Any]:
    return _OPTIONS[panel.kind] | ({"yAxis": {"unit": panel.unit}} if panel.kind == "heatmap" else {})


def text(board: Board) -> str:
    """Returns the text of a board's file."""
    return json.dumps(dashboard(board), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Writes all boards, and deletes files of boards that no longer exist."""
    for stale in DASHBOARDS.glob("*.json"):
        stale.unlink()
    for board in BOARDS:
        (DASHBOARDS / f"{board.name}.json").write_text(text(board), encoding="utf-8")


if __name__ == "__main__":
    main()
