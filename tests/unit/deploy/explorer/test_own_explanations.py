"""An estimator of the user's own explains its numbers on the page of an episode."""

import re
from html import unescape
from pathlib import Path

import pytest
from explorer_run import make_run
from fastapi.testclient import TestClient

from deploy.explorer.app import create_app
from deploy.explorer.runs import open_runs
from learner.credit.estimator import WithinGroup
from learner.credit.explanation import ADVANTAGE, CalculationLine
from learner.credit.group_operations import discounted, states
from learner.credit.types import Credit


class Returns(WithinGroup):
    """The returns as advantages."""

    def group(self, group, options):
        returns = discounted(group, options)
        return Credit(returns=returns, values=None, deltas=None, raw_advantages=returns, advantages=returns,
                      states=states(group))

    def explain(self, group, credit, options, episode):
        return [[CalculationLine(formula="A = R̂", result=one)] for one in credit.returns[episode]]


class LegendOfNothing(Returns):
    def legend(self, options):
        return {}


class LegendRaises(Returns):
    def legend(self, options):
        return {ADVANTAGE: options.missing}


class LegendIsNone(Returns):
    def legend(self, options):
        """Returns nothing."""


class ExplainRaises(Returns):
    def explain(self, group, credit, options, episode):
        return [[credit.values[step.state]] for step in group[episode]]


class ExplainIsShort(Returns):
    def explain(self, group, credit, options, episode):
        return []


class ExplainIsTexts(Returns):
    def explain(self, group, credit, options, episode):
        return [["A = R̂"] for _ in group[episode]]


def page(folder: Path, estimator: str) -> str:
    """Returns the page of an episode of a run with an estimator of this module."""
    run = make_run(folder, steps=1, estimator=f"{__name__}:{estimator}")
    client = TestClient(create_app(open_runs([run]), None), base_url="http://localhost:8400")
    reply = client.get("/toy/episode/step-00000001/0/train/00000100")
    assert reply.status_code == 200
    return unescape(reply.text)


def test_the_lines_of_an_estimator_of_ones_own_are_shown(tmp_path):
    shown = page(tmp_path / "toy", "Returns")
    assert "<code>A = R̂ = " in shown


def meanings(shown: str) -> dict[str, str]:
    """Returns what the page of an episode says of each symbol."""
    return dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", shown))


def test_a_number_that_the_legend_leaves_out_is_told_from_one_that_no_step_has(tmp_path):
    said = meanings(page(tmp_path / "toy", "LegendOfNothing"))
    name = f"{__name__}:LegendOfNothing"
    assert said["V̄"] == said["δ"] == f"estimator {name} has none"
    assert said["Â"] == f"estimator {name} does not say what it means"
    assert said["A"].startswith("advantage as the loss saw it: above 0")


def test_the_base_of_estimators_says_what_both_advantages_are(tmp_path):
    said = meanings(page(tmp_path / "toy", "Returns"))
    assert said["Â"] == "the advantage before normalising"
    assert said["A"].startswith("advantage as the loss saw it: above 0")


@pytest.mark.parametrize(("estimator", "said"), [
    ("LegendRaises", "legend of the estimator {name} failed (AttributeError: "),
    ("LegendIsNone", "legend of the estimator {name} returned None"),
    ("ExplainRaises", "explain of the estimator {name} failed (TypeError: 'NoneType' object is not subscriptable (in "),
    ("ExplainIsShort", "explain of the estimator {name} returned [] for an episode of 3 steps; return a list "),
    ("ExplainIsTexts", "explain of the estimator {name} returned [['A = R̂'], ['A = R̂'], ['A = R̂']] for an"),
])
def test_a_mistake_in_them_is_a_note_above_the_numbers_of_the_archive(tmp_path, estimator, said):
    shown = page(tmp_path / "toy", estimator)
    assert said.format(name=f"{__name__}:{estimator}") in shown
    assert 'data-name="A">' in shown
    assert "how its numbers come about" not in shown
