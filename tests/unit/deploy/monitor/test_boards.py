"""The boards show what exists, all of it, and lie in the tree as Grafana reads them."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from deploy.monitor.boards import BOARDS, STEPS_SPAN
from deploy.monitor.grafana import DASHBOARDS, PAGE_WIDTH, dashboard, text
from services.telemetry.names import CATALOGUE

OF_HISTOGRAMS = re.compile(r"_(bucket|sum|count)$")
NOT_SHOWN = {
    "gagpo_learner_steps_total": "the gauge of the step shows it",
    "gagpo_rollout_version_incarnation": "for the alert; the lag shows it",
    "gagpo_rollout_version_lag_incarnations": "for the alert",
    "gagpo_health_warning": "for the alert, which the overview shows",
    "gagpo_eval_step": "the step at which results changed is on the time axis",
}


def queries():
    return [(board, panel, query) for board in BOARDS for row in board.rows for panel in row.panels
            for query in panel.queries]


def metrics(expr: str) -> set[str]:
    found = set(re.findall(r"\bgagpo_[a-z_]+\b", expr))
    return {name if name in CATALOGUE else OF_HISTOGRAMS.sub("", name) for name in found}


@pytest.mark.parametrize(("board", "panel", "query"), queries(),
                         ids=lambda one: getattr(one, "title", None) or getattr(one, "legend", None))
def test_a_query_asks_for_declared_metrics_and_labels_in_the_runs_chosen(board, panel, query):
    names = metrics(query.expr)
    assert names <= CATALOGUE.keys()
    assert 'run=~"$run"' in query.expr
    known = {"run", "le", "worker", "instance", *(label for name in names for label in CATALOGUE[name].labels)}
    for labels in re.findall(r"by \(([^)]*)\)", query.expr):
        assert set(labels.split(", ")) <= known
    assert set(re.findall(r"{{(\w+)}}", query.legend)) <= known


def test_every_metric_is_on_a_board():
    shown = {name for _, _, query in queries() for name in metrics(query.expr)}
    assert CATALOGUE.keys() - shown == NOT_SHOWN.keys()


def test_growth_of_the_learners_counters_is_measured_over_several_steps():
    """They grow once per step. Over a shorter time the same learner would seem now twice as fast, now idle."""
    counted = {one.name for one in CATALOGUE.values() if "learner" in one.roles and one.kind != "gauge"}
    spans = [(query.expr, set(re.findall(r"\[([^]]*)\]", query.expr)))
             for _, _, query in queries() if metrics(query.expr) & counted]
    assert spans
    assert [expr for expr, span in spans if span != {STEPS_SPAN}] == []


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_each_dashboard_file_is_what_its_board_writes(board):
    """Where it is not: python -m deploy.monitor.grafana"""
    assert (DASHBOARDS / f"{board.name}.json").read_text(encoding="utf-8") == text(board)


def test_every_dashboard_file_has_its_board():
    assert {path.stem for path in DASHBOARDS.iterdir()} == {board.name for board in BOARDS}


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_panels_lie_beside_each_other_and_none_upon_another(board):
    panels = dashboard(board)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= PAGE_WIDTH for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"], (one, other)


def test_the_overview_reads_as_the_data_flows():
    titles = [row.title.partition(":")[0] for row in BOARDS[0].rows]
    assert titles == ["Is it well?", "Controller", "Store", "Rollout", "Environments", "Learner", "Results"]
