"""The lines under a step are true: worked out from their text alone, they give the archive's numbers."""

import re
from dataclasses import replace

import pytest
from explorer_run import make_run

from deploy.explorer.pages import calculation
from deploy.explorer.runs import open_runs
from learner.credit.checks import legend_of

ALL = "V̄ δ Â A"
HOLDING = {
    "gagpo": ({}, ALL), "ddof": ({"ddof": 0, "penalty": 0.3}, ALL), "raw": ({"normalize": "none"}, ALL),
    "prompt": ({"state_key": "prompt", "gamma": 1.0, "lam": 0.0}, ALL),
    "loo": ({"estimator": "gagpo_loo", "prior": 1.0}, ALL), "boot": ({"estimator": "gagpo_boot"}, ALL),
    "batch": ({"normalize": "batch"}, "V̄ δ Â"), "broadcast": ({"broadcast": 0.5}, ALL),
    "reward": ({"penalty_mode": "reward", "penalty": 0.5}, ALL), "small": ({"penalty": 3e-3}, ALL),
    "grpo": ({"estimator": "grpo"}, "Â A"), "episodes": ({"estimator": "grpo", "statistics": "trajectories"}, "Â A"),
    "undivided": ({"estimator": "grpo", "mode": "mean_norm"}, "Â A"),
    "gigpo": ({"estimator": "gigpo"}, "V̄ Â A"), "rloo": ({"estimator": "rloo"}, "Â A"),
    "reinforce": ({"estimator": "reinforce_pp"}, "Â"), "baseline": ({"estimator": "reinforce_pp_baseline"}, "Â"),
    "state": ({"normalize": "state"}, ALL), "floor": ({"normalize": "state", "spread_floor": 50.0}, ALL),
    "loo-state": ({"estimator": "gagpo_loo", "normalize": "state", "broadcast": 0.5}, ALL),
    "graft": ({"estimator": "graft"}, ALL), "crbc": ({"estimator": "crbc"}, ALL),
    "crbc-step": ({"estimator": "crbc", "broadcast": 0.0, "mode": "mean_norm"}, ALL),
    "graphhca": ({"estimator": "graphhca"}, ALL),
    "rlvmr": ({"estimator": "rlvmr"}, "Â A"), "ppo": ({"estimator": "ppo"}, "Â")}
"""Credit options, and the numbers that the page works out for every step."""


@pytest.mark.parametrize("name", HOLDING)
def test_a_line_worked_out_gives_the_number_of_the_archive(name, tmp_path):
    options, always = HOLDING[name]
    run, = open_runs([make_run(tmp_path / name, **options)])
    for entry in (entry for entry in run.groups() if entry.outcome == "trained"):
        group = run.group(entry.file, entry.group)
        for episode in group.episodes:
            for step, lines in zip(episode.steps, calculation(group, episode, run.credit), strict=True):
                said = {line.split(" ")[0]: line for line in lines}
                assert set(always.split()) <= set(said)
                archived = {"V̄": step.value, "δ": step.delta, "Â": step.raw, "A": step.advantage}
                for symbol, line in said.items():
                    *_, sum_, result = line.replace("−", "-").replace("·", "*").split(" = ")
                    assert float(result) == pytest.approx(archived[symbol], abs=6e-4)
                    if re.fullmatch(r"[-+*/().\d ]+", sum_):
                        assert eval(sum_) == pytest.approx(archived[symbol], rel=0.03, abs=5e-3)


def test_a_number_that_follows_another_formula_has_no_line(tmp_path):
    """As when an episode that was cut off ends in the value of a state that the archive does not name: δ of its last
    step is another one, and all else that it did not enter is explained as before."""
    run, = open_runs([make_run(tmp_path / "cut")])
    entry = next(entry for entry in run.groups() if entry.outcome == "trained")
    group = run.group(entry.file, entry.group)
    episode, before = group.episodes[0], calculation(group, group.episodes[0], run.credit)
    steps = [*episode.steps[:-1], replace(episode.steps[-1], delta=episode.steps[-1].delta + 1)]
    changed = replace(group, episodes=[replace(episode, steps=steps), *group.episodes[1:]], visits={})
    after = calculation(changed, changed.episodes[0], run.credit)
    assert after[:-1] == before[:-1]
    assert {line[0] for line in before[-1]} == {"V", "δ", "Â", "A"}
    assert {line[0] for line in after[-1]} == {"V", "A"}


def test_a_number_that_the_archive_lacks_is_shown_before_the_one_that_uses_it(tmp_path):
    run, = open_runs([make_run(tmp_path / "weighted", estimator="adastep")])
    entry = next(entry for entry in run.groups() if entry.outcome == "trained")
    group = run.group(entry.file, entry.group)
    shown = [[line[0] for line in lines] for lines in calculation(group, group.episodes[0], run.credit)]
    assert all(symbols[0] == "ŵ" and symbols[1] == "Â" for symbols in shown), shown


def test_an_episode_that_was_not_trained_on_has_none(run_folder):
    run, = open_runs([run_folder])
    entry = next(entry for entry in run.groups() if entry.outcome == "evaluated")
    group = run.group(entry.file, entry.group)
    assert calculation(group, group.episodes[0], run.credit) == [[] for _ in group.episodes[0].steps]


@pytest.mark.parametrize(("name", "fades"), [
    ("gagpo", "fading by γλ = 0.76 a step"),
    ("gagpo_loo", "fading by γλ = 0.76 a step, by γ where no other episode was in the next state"),
    ("gagpo_graph", "fading by γλ = 0.76 a step, with λ nearer to 1 the rarer the next state is")])
def test_the_legend_says_where_an_advantage_fades_as_the_lines_do(name, fades, tmp_path):
    run, = open_runs([make_run(tmp_path / name, estimator=name)])
    assert legend_of(run.credit)["Â"] == f"advantage: δ, and what followed, {fades}"


@pytest.mark.parametrize("name", ["gigpo", "hgpo", "adastep", "g2po"])
def test_a_step_alone_in_its_state_is_no_steps(name, tmp_path):
    run, = open_runs([make_run(tmp_path / name, estimator=name, state_key="prompt")])
    group = next(run.group(entry.file, entry.group) for entry in run.groups() if entry.outcome == "trained")
    lines = " ".join(line for step in calculation(group, group.episodes[0], run.credit) for line in step)
    assert "1 step in this state" in lines
    assert "1 steps" not in lines
