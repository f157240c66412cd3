"""The papers' tables as sweeps: their runs, and means over seeds."""

import json
from pathlib import Path

import pytest

from deploy.launch.checks import preflight
from deploy.runs.configs import SHIPPED, load_config
from deploy.runs.folder import RunFolder
from deploy.training import sweep
from deploy.training.sweep import ABLATIONS, SWEEPS, Variant, over_seeds, with_seeds
from learner.credit.registry import keys_read, options_of
from services.config.file import lay_over
from services.config.tree import Config
from services.telemetry.metrics_file import append_row


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config("alfworld-tiny", [f"runs_dir={tmp_path}", "name=swept", "seed=5"])


@pytest.mark.parametrize(("name", "runs"), [("ablations", 7), ("table1", 15), ("table2", 21), ("table3", 9)])
def test_each_sweep_makes_runs_that_can_start(config: Config, name: str, runs: int):
    """Each run has an estimator that reads its overrides, and what that needs."""
    variants = SWEEPS[name](config)
    made = sweep.configs(config, variants)
    assert len(made) == runs
    for one in made.values():
        preflight._credit(one)
    first = made[variants[0].name]
    assert first.learner == config.learner


def test_seeds_follow_that_of_the_config_and_come_one_after_another(config: Config):
    made = sweep.configs(config, SWEEPS["table1"](config))
    assert [one.seed for one in made.values()] == [5] * 5 + [6] * 5 + [7] * 5
    assert list(made)[:2] == ["gagpo-seed5", "gigpo-seed5"]
    assert len({one.model.path for one in list(made.values())[1:]}) == 1


@pytest.mark.parametrize("start", ["gagpo", "gigpo", "ppo"])
@pytest.mark.parametrize("base", ["alfworld-1.5b", "webshop-1.5b"])
def test_table_1_has_the_methods_as_their_presets_have_them(base: str, start: str, tmp_path: Path):
    """Equal in all that the learner does, whichever preset the sweep starts from; steps and hardware are those of its
    config, and so are the groups, which PPO's does not have."""
    config = load_config(SHIPPED / "paper" / f"{base}-{start}.yaml", [
        f"runs_dir={tmp_path}", "model.path=/model", "learner.groups_per_step=16", "learner.group_size=8"])
    made = sweep.configs(config, SWEEPS["table1"](config))
    for method in ("gagpo", "gigpo", "grpo", "rloo", "ppo"):
        preset = load_config(SHIPPED / "paper" / f"{base}-{method}.yaml").learner
        mine = made[f"{method}-seed0"].learner
        assert (mine.loss, mine.groups_per_step, mine.group_size) == (
            preset.loss, preset.groups_per_step, preset.group_size)
        read = keys_read(mine.credit)
        assert {key: getattr(mine.credit, key) for key in read} == {key: getattr(preset.credit, key) for key in read}


def test_ppo_of_table_1_values_tokens_also_if_the_config_is_of_turn_ppo(config: Config):
    """Its row is called PPO. Turn-PPO, the same estimator with values of turns, is a method of its own."""
    turns = lay_over(config, {"learner.credit.estimator": "ppo", "learner.credit.values": "turns"})
    made = sweep.configs(turns, SWEEPS["table1"](turns))
    assert options_of(made["ppo-seed5"].learner.credit).values == "tokens"


@pytest.mark.parametrize("start", ["gagpo", "gigpo", "ppo"])
@pytest.mark.parametrize("sweep_name", ["ablations", "table2"])
def test_table_2_ablates_gagpo_whichever_preset_it_starts_from(sweep_name: str, start: str, tmp_path: Path):
    """GiGPO's token loss would make the row without sequence ratio the full method again, and PPO's λ Monte Carlo."""
    laid = [f"runs_dir={tmp_path}", "model.path=/model", "learner.groups_per_step=16", "learner.group_size=8"]
    config, gagpo = (load_config(SHIPPED / "paper" / f"alfworld-1.5b-{name}.yaml", laid) for name in (start, "gagpo"))
    made, wanted = (sweep.configs(one, SWEEPS[sweep_name](one)) for one in (config, gagpo))
    for mine, theirs in zip(made.values(), wanted.values(), strict=True):
        assert mine.learner.loss == theirs.learner.loss
        read = keys_read(theirs.learner.credit)
        assert {key: getattr(mine.learner.credit, key) for key in read | {"estimator"}} == {
            key: getattr(theirs.learner.credit, key) for key in read | {"estimator"}}
    full, *others = ((options_of(one.learner.credit), one.learner.loss) for one in made.values())
    assert full not in others[:len(ABLATIONS) - 1]


def test_means_over_seeds_by_hand(config: Config):
    """Successes .5, .7 and .9: mean .7, sample deviation .2. One type and the score likewise; T=0.4 has one seed."""
    variants = with_seeds(ABLATIONS[:1], 0)
    made = sweep.configs(config, variants)
    for one, rate in zip(made.values(), (0.5, 0.7, 0.9), strict=True):
        one.run_dir.mkdir(parents=True)
        append_row(RunFolder(one.run_dir).evaluations, {
            "label": "panel-trained", "step": 3, "temperature": 1.0, "split": "heldout", "tasks": 10, "episodes": 10,
            "success_rate": rate, "task_score": rate / 2, "success_by_type": {"pick": rate - 0.1},
            "success_by_task": {"a": rate}})
    (line,) = over_seeds(made, variants)
    assert (line.method, line.seeds, line.panel) == ("full", 3, "heldout")
    assert line.success == pytest.approx((0.7, 0.2))
    assert line.by_type["pick"] == pytest.approx((0.6, 0.2))
    assert line.score == pytest.approx((0.35, 0.1))
    sweep.write(config.run_dir, sweep.table(made, variants), [line])
    assert json.loads((config.run_dir / "sweep.json").read_text())["over_seeds"][0]["seeds"] == 3
    shown = (config.run_dir / "sweep.txt").read_text()
    assert "70.0 ± 20.0" in shown
    assert "35.0 ± 10.0" in shown


def finished(config: Config, rate: float, by_task: dict[str, float]) -> None:
    config.run_dir.mkdir(parents=True)
    append_row(RunFolder(config.run_dir).evaluations, {
        "label": "panel-trained", "step": 3, "temperature": 1.0, "split": "heldout", "tasks": 2, "episodes": 2,
        "success_rate": rate, "success_by_type": {}, "success_by_task": by_task})


def test_gains_are_over_the_first_method_at_the_same_seed(config: Config):
    """Seed 0: both win a, and the second b too: +.5. Seed 1: the first wins both, the second none: -1. Seed 2 of the
    first has not finished, so the second's has no gain; over seed 0 all of them would have had one."""
    variants = with_seeds(ABLATIONS[:2], 0)
    made = sweep.configs(config, variants)
    won = {"full-seed0": (1, 0), "no-temporal-seed0": (1, 1), "full-seed1": (1, 1), "no-temporal-seed1": (0, 0),
           "no-temporal-seed2": (1, 1)}
    for name, (a, b) in won.items():
        finished(made[name], (a + b) / 2, {"a": float(a), "b": float(b)})
    lines = sweep.table(made, [variant for variant in variants if variant.name in won])
    assert {line.variant: line.gain for line in lines} == {
        "full-seed0": None, "no-temporal-seed0": 0.5, "full-seed1": None, "no-temporal-seed1": -1.0,
        "no-temporal-seed2": None}


def test_each_line_has_its_number_of_seeds_and_one_seed_has_no_deviation(config: Config):
    """.5 and .7: mean .6, deviation sqrt(.02). One seed alone: ± -, and null for machines, never 0."""
    variants = with_seeds(ABLATIONS[:2], 0)
    made = sweep.configs(config, variants)
    for name, rate in (("full-seed0", 0.5), ("full-seed1", 0.7), ("no-temporal-seed0", 0.4)):
        finished(made[name], rate, {"a": rate})
    first, second = over_seeds(made, variants)
    assert (second.seeds, second.success) == (1, (0.4, None))
    shown = [line.split() for line in sweep.as_text([], [first, second]).splitlines()[2:]]
    assert shown == [["seeds", "all", "score"], ["full", "T=1", "2", "60.0", "±", "14.1", "-"],
                     ["without", "temporal", "credit", "(λ", "=", "0)", "T=1", "1", "40.0", "±", "-", "-"]]


def test_variants_without_a_method_are_in_no_mean(config: Config):
    variants = (Variant(name="full", title="full", overrides={}),)
    assert over_seeds(sweep.configs(config, variants), variants) == []
