"""Each health rule on a run that breaks it, and on a run that nearly does."""

import re
from pathlib import Path
from typing import Any

import pytest

from deploy.runs.health import RULES, warnings
from services.config.sections import CreditSection
from services.telemetry.catalogue import CATALOGUE, HEALTH_RULES

HEALTHY = {"step": 1, "success_rate": 0.5, "episode_length": 20.0, "invalid_share": 0.02, "inadmissible_share": 0.8,
           "grad_norm": 0.3, "loss/entropy": 0.3, "credit/flat_share": 0.25}


def rows(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**HEALTHY, "step": step, **change} for step, change in enumerate(changes, 1)]


def found(metrics: list[dict[str, Any]], evaluations: list[dict[str, Any]] | None = None) -> list[str]:
    return [one.rule for one in warnings(metrics, evaluations or [], None)]


def test_a_healthy_run_and_a_run_without_a_step_have_no_warning():
    assert found([]) == []
    assert found(rows({}, {}, {}, {"episode_length": 8.0, "success_rate": 0.9, "loss/entropy": 0.1})) == []


def test_a_run_in_which_nothing_can_be_learned_says_so_at_its_first_step():
    (only,) = warnings(rows({"credit/flat_share": 1.0, "success_rate": 0.0}), [], None)
    assert only.text == (
        "nothing can be learned from step 1: in every group all episodes earned the same (0% success); start "
        "from a stronger policy (a longer cold start, or another model.path if sft.enabled is false), or choose games "
        "that are neither all won nor all lost")


@pytest.mark.parametrize(("key", "near", "beyond", "rule"), [
    ("credit/flat_share", 0.85, 0.95, "flat groups"), ("invalid_share", 0.18, 0.25, "invalid actions"),
    ("inadmissible_share", 0.89, 0.95, "inadmissible actions"), ("cut_share", 0.08, 0.12, "cut answers")])
def test_a_share_counts_on_average_over_the_last_three_steps(key: str, near: float, beyond: float, rule: str):
    assert found(rows(*[{key: near}] * 3)) == []
    assert found(rows({key: 0.0}, {key: 0.0}, {key: beyond})) == []
    assert found(rows({key: 0.0}, *[{key: beyond}] * 3)) == [rule]


def test_cut_answers_hide_nothing():
    """As 17 steps without a success did, whose actions were all inadmissible."""
    lost = {"cut_share": 0.11, "inadmissible_share": 1.0, "success_rate": 0.0}
    assert [one.text.partition(";")[0] for one in warnings(rows(*[lost] * 17), [])] == [
        "11% of the answers were cut at their limit of tokens", "100% of the actions are not admissible",
        "no episode was won in the last 17 learner steps"]
    assert found(rows(*[{"cut_share": 0.926, "invalid_share": 0.989}] * 3)) == ["cut answers", "invalid actions"]
    assert found(rows({"cut_share": 1.0, "credit/flat_share": 1.0})) == ["cut answers", "nothing to learn"]


def test_five_steps_in_a_row_without_a_won_episode_are_a_finding():
    assert found(rows({}, *[{"success_rate": 0.0}] * 4)) == []
    assert found(rows({}, *[{"success_rate": 0.0}] * 5)) == ["no success"]
    assert found(rows(*[{"success_rate": 0.0}] * 5, {"success_rate": 0.01})) == []
    assert found(rows(*[{"success_rate": None}] * 5)) == []


def test_before_the_first_step_the_evaluation_of_the_start_shows_answers_without_an_action():
    start = evaluation(0, 0) | {"invalid_share": 0.97, "inadmissible_share": 0.0, "episode_length": 20.0}
    (only,) = warnings([], [start])
    assert only.text == (
        "97% of the answers hold no well-formed action; choose another env.prompt or model.path, or show the form in a "
        "cold start (sft.enabled=true, or more sft.minutes)")
    assert warnings([], [start | {"invalid_share": 0.18}]) == []
    assert warnings(rows({}), [start]) == []


PAGE = (Path(__file__).parents[4] / "docs/operate/does-not-learn.md").read_text().splitlines()


def test_the_page_about_runs_that_do_not_learn_marks_what_the_rules_read_in_their_order():
    marked = [set(re.findall(r"`([a-z_/]+)`", row.split("|")[2])) for row in PAGE if "⚠" in row and row[0] == "|"]
    assert marked.pop() == set()  # that of evaluations.jsonl comes last: success that has fallen
    reads = {rule.name: set(rule.keys) for rule in RULES} | {"states": {"credit/singleton_share", "credit/mixed_share"}}
    places = [place for name in HEALTH_RULES[:-1] for place, keys in enumerate(marked) if reads[name] & keys]
    assert list(dict.fromkeys(places)) == sorted(set(places))
    assert set(places) == set(range(len(marked)))


@pytest.mark.parametrize(("key", "limit"), [("cut_share", 0.1), ("invalid_share", 0.2), ("inadmissible_share", 0.9),
                                            ("credit/flat_share", 0.9)])
def test_the_page_gives_the_limit_of_each_share(key: str, limit: float):
    (row,) = (row for row in PAGE if f"`{key}` ⚠" in row)
    assert f"is {limit:g} or more" in row
    assert found(rows(*[{key: limit}] * 3))
    assert not found(rows(*[{key: limit - 0.001}] * 3))


def test_rows_of_a_version_without_the_share_cause_no_warning():
    metrics = rows({}, {})
    for row in metrics:
        del row["credit/flat_share"]
    assert found(metrics) == []


@pytest.mark.parametrize(("norm", "expected"), [
    (0.0, ["no gradient"]), (None, ["no gradient"]), (0.002, [])])
def test_a_gradient_of_zero_or_none_is_said(norm: float | None, expected: list[str]):
    assert found(rows({}, {"grad_norm": norm})) == expected


def test_collapsed_entropy():
    assert found(rows(*[{"loss/entropy": 0.3}] * 3, *[{"loss/entropy": 0.07}] * 3)) == []
    assert found(rows(*[{"loss/entropy": 0.3}] * 3, *[{"loss/entropy": 0.05}] * 3)) == ["entropy"]


def test_a_policy_that_wins_nearly_all_may_be_certain_of_its_actions():
    certain = {"loss/entropy": 0.03, "success_rate": 0.95}
    assert found(rows(*[{}] * 3, *[certain] * 3)) == []
    assert found(rows(*[{}] * 3, *[{**certain, "success_rate": 0.85}] * 3)) == ["entropy"]
    assert found(rows(*[{"success_rate": None}] * 3, *[{**certain, "success_rate": None}] * 3)) == ["entropy"]


def test_shorter_episodes_are_a_finding_only_if_fewer_are_won():
    short = {"episode_length": 9.0}
    assert found(rows(*[{}] * 3, *[{**short, "success_rate": 0.6}] * 3)) == []
    assert found(rows(*[{}] * 3, *[{**short, "success_rate": 0.2}] * 3)) == ["length"]


def evaluation(step: int, wins: int, label: str = "") -> dict[str, Any]:
    """Returns an evaluation of a hundred games, of which the first `wins` are won."""
    return {"label": label or f"step-{step:06d}", "step": step, "success_rate": wins / 100, "temperature": 0.4,
            "split": "valid",
            "success_by_task": {f"game-{i}": float(i < wins) for i in range(100)}}


def test_each_rule_is_among_the_labels_of_the_exported_warnings():
    names = [rule.name for rule in RULES]
    names.insert(names.index("flat groups") + 1, "states")
    assert CATALOGUE["gagpo_health_warning"].labels["rule"] == (*names, "success")


def test_success_that_falls_against_the_best_evaluation():
    """From 70 to 50 of the same hundred games: the paired interval of -20 points is [-28, -12]."""
    (only,) = warnings([], [evaluation(0, 40), evaluation(5, 70), evaluation(10, 50)], None)
    assert only.text.startswith("success has fallen from 70% at step 5 to 50% at step 10; ")
    assert warnings([], [evaluation(0, 40), evaluation(5, 70), evaluation(10, 64)], None) == []
    assert warnings([], [evaluation(5, 70), evaluation(0, 40, label="panel-cold")], None) == []


@pytest.mark.parametrize("other", [{"temperature": 1.0}, {"split": "heldout"}])
def test_success_at_another_temperature_or_on_other_games_has_not_fallen(other: dict[str, Any]):
    """A run may go on with another eval.temperature, or with eval.on_panel."""
    earlier, later = evaluation(5, 70), evaluation(10, 50) | other
    assert warnings([], [evaluation(0, 40), earlier, later], None) == []
    assert [one.rule for one in warnings([], [earlier, evaluation(8, 75) | other, later], None)] == ["success"]


def test_the_best_of_many_evaluations_is_above_the_last_by_chance():
    """24 of 100 games are lost that the best won, and 12 won that it lost: -12 points, variance (36 - 1.44) / 99, so
    the error is 5.908 points: [-23.6, -0.4] for one comparison, and with 2.807 errors for ten -12 + 16.6 is above 0."""
    games = {f"game-{i}": i < 70 for i in range(100)}
    best = evaluation(5, 70)
    last = evaluation(100, 58) | {"success_by_task": {
        name: float(won if not 46 <= i < 82 else not won) for i, (name, won) in enumerate(games.items())}}
    assert sum(last["success_by_task"].values()) == 58
    assert [one.rule for one in warnings([], [best, last], None)] == ["success"]
    assert warnings([], [*(evaluation(step, 50) for step in range(10, 100, 10)), best, last], None) == []


@pytest.mark.parametrize(("alone", "mixed", "credit", "texts"), [
    (0.05, 0.3, {}, []),
    (0.05, 0.4, {}, ["40% of the turns share their state mostly with turns that had other admissible actions, so that "
                     "its value is a mean over unlike situations: set "
                     "learner.credit.state_key=observation+admissible"]),
    (0.05, 0.15, {"estimator": "graft"}, ["15% of the turns share"]),  # it follows paths, so fewer are too many
    (0.5, None, {"state_key": "prompt"}, ["50% of the turns are alone in their state, so nothing is compared with "
                                          "them: set learner.credit.state_key=observation"]),
    (0.5, 0.5, {}, ["50% of the turns are alone", "50% of the turns share"]),
    (0.5, 0.5, {"estimator": "grpo"}, []),
    (0.5, 0.5, {"estimator": "no_such_module:Thing"}, ["50% of the turns are alone", "50% of the turns share"])])
def test_states_that_say_too_little_or_too_much_name_the_key_that_helps(alone, mixed, credit, texts):
    """Code of the user's own is not imported for it."""
    metrics = rows(*[{"credit/singleton_share": alone, "credit/mixed_share": mixed}] * 3)
    found = warnings(metrics, [], CreditSection(**credit))
    assert [one.rule for one in found] == ["states"] * bool(texts)
    for text in texts:
        assert text in found[0].text


def test_agents_are_told_of_the_header_that_names_a_state():
    metrics = rows({"credit/singleton_share": 0.5})
    found, = warnings(metrics, [], CreditSection(), agents=True)
    assert "50% of the calls are alone in their state" in found.text
    assert "x-gagpo-state" in found.text
