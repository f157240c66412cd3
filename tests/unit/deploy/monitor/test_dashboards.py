"""The dashboards ask for metrics that exist, show all of them, and are files that Grafana loads."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path

import pytest
import yaml
from dashboards import FILES, Query, list_queries, load_panels

from services.telemetry.catalogue import CATALOGUE

OF_HISTOGRAMS = re.compile(r"_(bucket|sum|count)$")
NOT_SHOWN = {
    "gagpo_learner_steps_total": "the gauge of the step shows it",
    "gagpo_rollout_version_incarnation": "for the alert; the lag shows it",
    "gagpo_rollout_version_lag_incarnations": "for the alert",
    "gagpo_health_warning": "for the alert, which the overview shows",
    "gagpo_eval_step": "the step at which results changed is on the time axis",
}
PAGE_WIDTH = 24
"""Columns of Grafana's grid."""
SEVERAL_STEPS = "30m"
QUERIES = tuple(list_queries())
each_dashboard = pytest.mark.parametrize("name", [file.stem for file in FILES])


def metrics(expr: str) -> set[str]:
    names = set(re.findall(r"\bgagpo_[a-z_]+\b", expr))
    return {name if name in CATALOGUE else OF_HISTOGRAMS.sub("", name) for name in names}


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: f"{query.dashboard}, {query.panel}: {query.legend}")
def test_a_query_asks_for_declared_metrics_and_labels_in_the_runs_chosen(query: Query):
    names = metrics(query.expr)
    assert names <= CATALOGUE.keys()
    assert 'run=~"$run"' in query.expr
    labels = {"run", "le", "worker", "instance", *(label for name in names for label in CATALOGUE[name].labels)}
    for grouping in re.findall(r"by \(([^)]*)\)", query.expr):
        assert set(grouping.split(", ")) <= labels
    assert set(re.findall(r"{{(\w+)}}", query.legend)) <= labels


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is missing")
def test_every_query_is_valid_promql(tmp_path: Path):
    queries = [query.expr.replace("$run", ".*").replace("$__rate_interval", "20s") for query in QUERIES]
    rules = [{"record": f"query_{number}", "expr": expr} for number, expr in enumerate(queries)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(QUERIES)} rules found" in done.stdout


def test_every_metric_is_on_a_dashboard():
    shown = {name for query in QUERIES for name in metrics(query.expr)}
    assert CATALOGUE.keys() - shown == NOT_SHOWN.keys()


def test_growth_of_the_learners_counters_is_measured_over_several_steps():
    """They grow once per step. Over a shorter time the same learner would seem now twice as fast, now idle."""
    counted = {one.name for one in CATALOGUE.values() if "learner" in one.roles and one.kind != "gauge"}
    windows = {query.expr: set(re.findall(r"\[([^]]*)\]", query.expr))
               for query in QUERIES if metrics(query.expr) & counted}
    assert windows
    assert [expr for expr, window in windows.items() if window != {SEVERAL_STEPS}] == []


def test_there_is_an_overview_and_a_dashboard_for_each_part():
    assert [file.stem for file in FILES] == ["credit", "environments", "learner", "overview", "rollout"]


@each_dashboard
def test_a_dashboard_has_its_own_address_and_the_choice_of_the_data_source_and_the_runs(name: str):
    board = json.loads(next(file for file in FILES if file.stem == name).read_text())
    assert board["uid"] == f"gagpo-{name}"
    assert {one["name"] for one in board["templating"]["list"]} == {"source", "run"}
    sources = {json.dumps(target["datasource"]) for panel in load_panels(name) for target in panel.get("targets", ())}
    assert sources == {'{"type": "prometheus", "uid": "${source}"}'}


@each_dashboard
def test_no_panel_overlaps_another(name: str):
    panels = load_panels(name)
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= PAGE_WIDTH for place in places)
    for one, other in combinations(places, 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"], (one, other)


def test_the_overview_reads_as_the_data_flows():
    titles = [panel["title"].partition(":")[0] for panel in load_panels("overview") if panel["type"] == "row"]
    assert titles == ["Is it well?", "Controller", "Store", "Rollout", "Environments", "Learner", "Results"]
