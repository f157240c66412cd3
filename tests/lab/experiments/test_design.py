"""Which runs an experiment makes, in which order, and that its arms exist."""

from itertools import pairwise
from pathlib import Path

import pytest

from deploy.runs.configs import load_config
from lab.experiments.credit.design import (
    ARMS,
    COMPARISONS,
    FIRST_ARMS,
    MAIN,
    PlannedRun,
    chosen,
    config_of,
    first_seeds,
    fresh_seeds,
    runs,
    to_confirm,
)
from learner.credit.registry import ESTIMATORS
from services.config.file import flatten
from services.errors import UserError


def test_seed_by_seed_so_that_any_prefix_is_balanced():
    made = runs(ARMS, range(3))
    assert [run.name for run in made[:2]] == ["gagpo-seed0", "gagpo_loo-seed0"]
    for length in range(len(made) + 1):
        counts = {arm: sum(run.arm == arm for run in made[:length]) for arm in ARMS}
        assert max(counts.values()) - min(counts.values()) <= 1
    assert all(before.seed <= after.seed for before, after in pairwise(made))


def test_as_planned_the_arms_of_the_two_questions_get_ten_seeds_and_the_others_five():
    made = first_seeds(chosen(None), None)
    assert {arm: sorted(run.seed for run in made if run.arm == arm) for arm in chosen(None)} == {
        arm: list(range(10 if arm in MAIN else 5)) for arm in chosen(None)}
    assert len(made) == 50


def test_given_seeds_are_the_first_ones_of_each_arm():
    assert [run.name for run in first_seeds(["grpo"], 2)] == ["grpo-seed0", "grpo-seed1"]


def test_seeds_that_confirm_were_never_used_to_choose():
    fresh = {run.seed for run in fresh_seeds(list(ARMS), None)}
    assert fresh == set(range(100, 105))
    assert not fresh & {run.seed for run in first_seeds(list(ARMS), None)}


@pytest.mark.parametrize(("scores", "pair"), [
    ({"gagpo": [0.5], "gagpo_loo": [0.6, 0.8], "gigpo": [0.4], "grpo": [0.9]}, ("gagpo_loo", "gagpo")),
    ({"gagpo": [0.5], "gagpo_loo": [0.1], "gigpo": [0.4]}, ("gagpo", "gigpo")),
    ({"gagpo_loo": [0.1], "gigpo": [0.4]}, ("gigpo", "gagpo_loo"))])
def test_the_better_main_arm_is_confirmed_against_gagpo(scores: dict[str, list[float]], pair: tuple[str, str]):
    assert to_confirm(scores) == pair


def test_nothing_can_be_confirmed_before_the_first_seeds():
    with pytest.raises(UserError, match="no winner"):
        to_confirm({"gagpo": [0.5]})


def test_arms_are_chosen_by_name():
    assert chosen(None) == [arm for arm in FIRST_ARMS if arm != "gagpo_loo-first"]
    assert chosen("gagpo_graph-adm,gagpo") == ["gagpo", "gagpo_graph-adm"]
    assert chosen("gigpo, gagpo") == ["gagpo", "gigpo"]


@pytest.mark.parametrize("name", ["gigo", "gagpo_loo-first"])
def test_an_unknown_arm_or_one_whose_estimator_has_changed_is_refused(name: str):
    with pytest.raises(UserError, match=f"there is no arm '{name}'"):
        chosen(name)


@pytest.mark.parametrize("arm", [name for name, arm in ARMS.items() if arm.runnable])
def test_an_arm_changes_credit_alone(arm: str, tmp_path: Path):
    """PPO's advantages are per token, so it keeps the token-level loss."""
    config = load_config("credit-experiment", [f"runs_dir={tmp_path}"])
    mine = config_of(PlannedRun(arm=arm, seed=3), config, cold_start="cold")
    before, after = flatten(config), flatten(mine)
    differ = {key for key in before if before[key] != after[key]}
    common = {"name", "seed", "runs_dir", "sft.enabled", "model.path"}
    loss = {"learner.loss.ratio", "learner.loss.aggregation"} if arm == "ppo" else set()
    credit = ("estimator", "gamma", "lam", "state_key", "stay", "values", "mode", "broadcast", "normalize",
              "statistics", "omega", "spread_floor")
    critic = {"learner.critic.value_clip", "learner.critic.lr"} if arm.startswith("turn_ppo-") else set()
    assert differ - common - loss - critic <= {f"learner.credit.{key}" for key in credit}
    assert mine.learner.credit.estimator in ESTIMATORS
    assert mine.run_dir == tmp_path / "credit-experiment" / f"{arm}-seed3"


def test_the_arms_of_one_seed_are_paired(tmp_path: Path):
    config = load_config("credit-experiment", [f"runs_dir={tmp_path}"])
    assert {config_of(PlannedRun(arm=arm, seed=7), config, cold_start="cold").seed for arm in ARMS} == {7}


def test_runs_are_not_copied_to_an_object_store(tmp_path: Path):
    """Their folders are thrown away, and the copy of an interrupted one would refuse the run that begins again."""
    config = load_config("credit-experiment", [f"runs_dir={tmp_path}", "storage.url=s3://bucket/runs"])
    assert config_of(PlannedRun(arm="gagpo", seed=0), config, cold_start="cold").storage.url is None


def test_every_compared_arm_exists():
    assert {arm for pair in COMPARISONS for arm in pair} <= set(ARMS)
    assert len({arm.colour for arm in ARMS.values()}) == len(ARMS)
