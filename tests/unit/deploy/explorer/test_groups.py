"""The pages show a group as `gagpo credit` computes it; archives of the first format stay readable."""

import dataclasses
import json
import shlex
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import pytest
from explorer_run import ACTIONS, make_run
from msgspec import structs
from pydantic import BaseModel

from deploy.cli import main
from deploy.explorer import pages
from deploy.explorer.app import Pages
from deploy.explorer.drawings import LAYER, LETTER, NARROWEST, SHADES, draw
from deploy.explorer.filters import number
from deploy.explorer.groups import credit_input
from deploy.explorer.runs import open_runs
from learner.credit.state_keys import Keys, fold, state_key


class ByLength:
    """A state key of the user's own."""

    class Options(BaseModel):
        unit: int = 1

    knows_cuts = False

    def keys(self, group, options):
        return Keys(cut_in=[None] * len(group), steps=[
            [state_key(episode.ticket.group, episode.ticket.task, str(len(step.observation) // options.unit))
             for step in episode.steps] for episode in group])


CREDITS = {
    "own-key": {"state_key": f"{__name__}:ByLength", "unit": 7},
    "gagpo": {}, "cut": {"bootstrap": True, "lam": 0.5, "gamma": 0.9}, "batch": {"normalize": "batch"},
    "loo": {"estimator": "gagpo_loo", "prior": 1.0}, "prompt": {"state_key": "prompt"},
    "folded": {"state_key": "normalized", "ddof": 0, "penalty": 0.3}, "grpo": {"estimator": "grpo"},
    "gigpo": {"estimator": "gigpo", "mode": "mean_norm", "penalty_mode": "reward"}, "raw": {"normalize": "none"},
    "rlvmr": {"estimator": "rlvmr"}}


@pytest.mark.parametrize(("credit", "offered"), [
    ({"bootstrap": True, "state_key": "observation+admissible"}, False), ({"bootstrap": True}, True),
    ({"state_key": "observation+admissible"}, True),
    ({"estimator": "graphgpo", "state_key": "observation+admissible"}, False), ({"estimator": "graphgpo"}, True)])
def test_no_command_is_offered_where_the_archive_lacks_the_states_of_cut_episodes(tmp_path, credit, offered):
    """The command computed other numbers without them."""
    run, = open_runs([make_run(tmp_path / "run", steps=2, **credit)])
    groups = [run.group(entry.file, entry.group) for entry in run.groups() if entry.outcome == "trained"]
    cut = [group for group in groups if any(episode.end == "turns" for episode in group.episodes)]
    assert cut
    assert [pages.command(run, group) is not None for group in cut] == [offered] * len(cut)


@pytest.mark.parametrize("name", CREDITS)
def test_the_numbers_of_the_episode_page_are_those_of_gagpo_credit(name, tmp_path, monkeypatch, capsys):
    """Uses the file and the command that the page offers."""
    run, = open_runs([make_run(tmp_path / name, steps=2, **CREDITS[name])])
    for entry in run.groups():
        if entry.outcome != "trained":
            continue
        group = run.group(entry.file, entry.group)
        monkeypatch.chdir(tmp_path)
        given = credit_input(group, run.credit)
        (tmp_path / pages.credit_file(group)).write_text(json.dumps(given))
        words = shlex.split(pages.command(run, group))
        assert words[-1] == "--table"
        assert main([*words[1:-1], "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        for i, episode in enumerate(group.episodes):
            page = pages.episode(run, group, episode)
            shown = [row.step for row in page["rows"]]
            assert [step.ret for step in shown] == said["returns"][i]
            assert [step.raw for step in shown] == said["raw_advantages"][i]
            if said["deltas"] is not None:
                assert [step.delta for step in shown] == said["deltas"][i]
            if getattr(run.credit, "normalize", "") != "batch":
                assert [step.advantage for step in shown] == said["advantages"][i]
            if said["values"] is not None:
                for step in shown:
                    assert (step.value, len(group.visits[step.state])) == value_of(said, given, group, step)


def test_the_command_of_an_option_that_is_off_can_be_run(tmp_path, monkeypatch, capsys):
    """A system of equations is solved in the order of the states' names, so its last digits are others."""
    run, = open_runs([make_run(tmp_path / "run", steps=1, estimator="gagpo_graph", leave_out=False)])
    group = run.group("step-00000001", "train/00000100")
    monkeypatch.chdir(tmp_path)
    (tmp_path / pages.credit_file(group)).write_text(json.dumps(credit_input(group, run.credit)))
    assert main([*shlex.split(pages.command(run, group))[1:-1], "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    for episode, advantages in zip(group.episodes, said["advantages"], strict=True):
        assert [step.advantage for step in episode.steps] == pytest.approx(advantages)


def value_of(said, given, group, step):
    """V̄ and the size of the step's state as the command says them, by the text that stands for it: one of its own, or
    folded."""
    own = {given["episodes"][visit.k]["steps"][visit.step.t]["state"] for visit in group.visits[step.state]}
    texts = own | {fold(text) for text in own}
    (value, count), = [said["values"][text] for text in texts & set(said["values"])]
    return value, count


def test_the_costliest_step_is_the_lowest_delta_before_a_cut_and_the_better_action_is_from_the_same_state(run_folder):
    run, = open_runs([run_folder])
    for entry in run.groups():
        group = run.group(entry.file, entry.group)
        for episode in group.episodes:
            page = pages.episode(run, group, episode)
            deltas = [step.delta for step in episode.steps]
            if deltas[0] is None or min(deltas) >= 0:
                assert page["worst"] is None
                continue
            chosen = deltas if episode.won else deltas[:-1]
            assert page["worst"].delta == min(chosen if min(chosen) < 0 else deltas)
            assert (page["cut"] is not None) == (min(deltas) < page["worst"].delta)
            if page["better"] is not None:
                assert {visit.step.state for visit in page["better"].visits} == {page["worst"].state}
                assert page["better"].mean_return > page["worst"].ret


def test_ratios_are_of_the_learners_logprobs_and_the_last_row_shows_what_came_of_it(run_folder):
    run, = open_runs([run_folder])
    group = run.group("step-00000001", "train/00000100")
    rows = pages.episode(run, group, group.episodes[0])["rows"]
    assert all(piece.ratio == pytest.approx(1.01005, abs=1e-4) for row in rows for piece in row.pieces)
    assert [row.step.result for row in rows][-1] == "It is over."
    assert rows[0].step.result == rows[1].step.observation
    assert len(rows[0].step.prompt_ids) == rows[0].step.num_prompt


def test_the_failed_episode_shown_first_is_the_one_whose_choice_cost_most_and_a_cut_is_no_choice(run_folder):
    run, = open_runs([run_folder])
    entry = pages.instructive(run.groups())
    assert entry.spread == max(other.spread for other in run.groups() if other.outcome == "trained")
    group = run.group(entry.file, entry.group)
    lost = [episode for episode in group.episodes if not episode.won]
    costs = [min(0.0, *(step.delta for step in episode.steps[:-1])) for episode in lost]
    assert group.lost is lost[costs.index(min(costs))]
    assert all(episode.end == "turns" for episode in lost)
    assert all(episode.costliest_choice is not episode.steps[-1] for episode in lost)
    last = dataclasses.replace(lost[0].steps[-1], delta=-9.0)
    assert dataclasses.replace(lost[0], steps=[*lost[0].steps[:-1], last]).costliest_choice is last, "with bootstrap"
    won = [other for other in run.groups() if other.won == other.episodes]
    assert pages.instructive(won) is None
    assert all(run.group(other.file, other.group).lost is None for other in won)


def test_a_cut_is_no_choice_even_if_the_last_reward_has_a_penalty(tmp_path):
    run, = open_runs([make_run(tmp_path / "run", penalty_mode="reward", penalty=0.5)])
    groups = [run.group(entry.file, entry.group) for entry in run.groups() if entry.outcome == "trained"]
    cut = [episode for group in groups for episode in group.episodes
           if episode.end == "turns" and not episode.steps[-1].valid]
    assert cut
    assert all(episode.cut_off and episode.costliest_choice is not episode.steps[-1] for episode in cut)


def test_table_and_graph_show_the_mean_value_of_a_state_whose_visits_have_several(tmp_path):
    """With leave-one-out each episode has its own baseline. The darkest state is the one with the highest mean."""
    run, = open_runs([make_run(tmp_path / "run", steps=1, estimator="gagpo_loo")])
    group = run.group("step-00000001", "train/00000100")
    means = {key: fmean(visit.step.value for visit in visits) for key, visits in group.visits.items()}
    assert any(visits[0].step.value != pytest.approx(means[key]) for key, visits in group.visits.items())
    context = pages.group(run, group, None)
    shown = {visits[0].step.state: value for visits, value, *_ in context["states"]}
    assert shown == pytest.approx(means)
    nodes = [node for node in context["graph"].nodes if not node.end]
    assert [node.value for node in nodes] == pytest.approx(list(means.values()))
    highest = max(means.values())
    assert [node.shade for node in nodes] == [round(SHADES * max(mean / highest, 0.0)) for mean in means.values()]
    page = Pages([run]).show("group.html", context, run=run).body.decode()
    assert all(f'<td class="num">{number(mean, 2)}</td>' in page for mean in means.values())


def test_the_first_text_is_never_cut_as_the_goal_stands_at_its_end(run_folder):
    """A longer text than the page otherwise folds, on the pages of the group and of the episode."""
    run, = open_runs([run_folder])
    entry = next(entry for entry in run.groups() if entry.outcome == "trained")
    group = run.group(entry.file, entry.group)
    goal = "You see a shelf. " * 40 + "Your task is to: find the goal."
    first, *others = group.episodes
    told = replace(first, steps=[replace(first.steps[0], observation=goal), *first.steps[1:]])
    group = replace(group, episodes=[told, *others], visits={})
    shown = Pages([run])
    for template, context in (("group.html", pages.group(run, group, None)),
                              ("episode.html", pages.episode(run, group, told))):
        text = shown.show(template, context, run=run).body.decode()
        assert f'<p class="obs{" goal" if template == "group.html" else ""}">{goal}</p>' in text
        task = entry.task.rpartition("/")[2]
        assert f"<h1><bdi>{task}</bdi> " in text or f">{task}</a>" in text


def test_the_failed_episode_offered_first_is_of_the_latest_step_that_teaches(run_folder):
    run, = open_runs([run_folder])
    early, late = (next(entry for entry in run.groups() if entry.outcome == "trained" and entry.step == step)
                   for step in (1, 2))
    wide, narrow = structs.replace(early, won=1, spread=5.0), structs.replace(late, won=1, spread=1.0)
    assert pages.instructive([wide, narrow]) == narrow
    assert pages.instructive([wide, structs.replace(late, won=0, spread=0.0)]) == wide


def test_the_box_shows_the_trained_policy_and_not_the_control():
    row = {"step": 5, "temperature": 1.0, "tasks": 10, "split": "valid", "success_low": 0.1, "success_high": 0.9}
    curve = [row | {"label": "step-000000", "step": 0, "success_rate": 0.2},
             row | {"label": "step-000005", "success_rate": 0.6}]
    final = [row | {"label": label, "success_rate": rate} for label, rate in (
        ("panel-cold", 0.3), ("panel-trained", 0.7), ("panel-more-cold-start", 0.4))]
    assert pages.trained_policy([]) is None
    assert pages.trained_policy(curve + final[:1]) == {
        "name": "evaluation at step 5", "text": "60% [10%, 90%] of 10 games of valid, T=1"}
    assert pages.trained_policy(curve + final) == {
        "name": "held-out games, after RL", "text": "70% [10%, 90%] of 10 games of valid, T=1"}
    repeated = final[1] | {"pass_at": {"2": 0.75}, "pass_at_low": {"2": 0.5}, "pass_at_high": {"2": 1.0}}
    assert pages.trained_policy([*curve, repeated]) == {
        "name": "held-out games, after RL",
        "text": "70% [10%, 90%] of 10 games of valid, T=1; pass@2 75.0% [50.0%, 100.0%]"}
    later = row | {"label": "step-000010", "step": 10, "success_rate": 0.8}  # the run went on with more steps
    assert pages.trained_policy([*curve, *final, later]) == {
        "name": "evaluation at step 10", "text": "80% [10%, 90%] of 10 games of valid, T=1"}


def test_states_are_named_by_the_action_that_led_there_and_layers_are_never_empty(run_folder):
    run, = open_runs([run_folder])
    entry = next(entry for entry in run.groups() if entry.outcome == "trained")
    drawn = draw(run.group(entry.file, entry.group))
    states = [node for node in drawn.nodes if not node.end]
    assert [node.label for node in states if node.t == 0] == ["start"]
    assert all(node.label in ACTIONS for node in states if node.t)
    heights = sorted({node.y for node in drawn.nodes})
    assert {b - a for a, b in pairwise(heights)} == {LAYER}
    assert drawn.width >= NARROWEST
    for node in states:
        neighbours = [abs(node.x - other.x) for other in drawn.nodes if other is not node and other.y == node.y]
        assert node.room * LETTER <= min([*neighbours, 2 * node.x, 2 * (drawn.width - node.x)])
        assert node.room >= len("go to garbagecan 1")
