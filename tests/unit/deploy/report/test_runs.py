"""Runs are pooled into arms by what decides about them."""

import json
import shutil

import pytest

from deploy.report import figures
from deploy.report.runs import compare_runs, in_common, read_run
from deploy.runs.configs import load_config
from deploy.training.sweep import SWEEPS, configs
from services.config.file import dump_config


@pytest.mark.parametrize("moved", ["table", "kept"])
def test_the_runs_of_a_sweep_are_arms_of_all_its_seeds(tmp_path, run, moved):
    """All begin with the first one's cold start. It was an arm of its own, so no difference had two pairs."""
    base = load_config("alfworld-tiny", [f"runs_dir={tmp_path}", "name=table"])
    for name, config in configs(base, SWEEPS["table1"](base)).items():
        shutil.copytree(run("made"), config.run_dir, dirs_exist_ok=True)
        shutil.rmtree(tmp_path / "made")
        dump_config(config, config.run_dir / "config.yaml")
        assert config.run_dir.name == name
    (tmp_path / "table").rename(tmp_path / moved)
    compared = compare_runs([read_run(folder) for folder in sorted((tmp_path / moved).iterdir())])
    seeds = {arm: sorted(record.seed for record in compared.records if record.arm == arm) for arm in compared.arms}
    assert sorted(seeds) == ["gagpo", "gigpo", "grpo", "ppo", "rloo"]
    assert set(map(tuple, seeds.values())) == {(0, 1, 2)}


@pytest.mark.parametrize(("names", "title"), [
    (["gagpo-seed0", "gagpo-seed1"], "gagpo"), (["gagpo-seed1", "gagpo-seed10"], "gagpo"),
    (["gagpo-seed10", "gagpo-seed11"], "gagpo"), (["qwen7-seed0", "qwen7-seed1"], "qwen7"), (["7b-0", "7b-1"], "7b"),
    (["run10", "run11"], "run")])
def test_an_arm_is_named_by_its_runs_without_their_seeds(run, names, title):
    """Seeds from 10 on alone were the arm `gagpo-seed`, and the 7 of a model's name counted as one."""
    assert list(compare_runs([read_run(run(name, seed=seed)) for seed, name in enumerate(names)]).arms) == [title]


def without_steps(folder, *lost):
    """Returns the folder of a run with damaged lines of metrics.jsonl in the place of these learner steps."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("".join(
        "damaged\n" if step in lost else f"{line}\n" for step, line in enumerate(lines, 1)))
    return folder


def test_a_curve_stands_at_the_steps_that_its_file_has(run):
    """It was drawn from step 1 on, so after a lost line each value stood at an earlier step."""
    compared = compare_runs([read_run(without_steps(run("mine", steps=4), 1, 3))])
    _, (ax,) = figures.new_figure()
    figures._curves(ax, compared.records, compared.arms, figures.PAPER["success"][0])
    assert [list(line.get_xdata()) for line in ax.lines] == [[2, 4], [2, 4]]


def test_a_curve_has_its_values_also_if_the_last_step_has_none(run):
    """A step of a run with several environments may have groups of some of them alone."""
    folder = run("mine", steps=3)
    first, *others = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    rows = [first | {"env/search-gen/success": 0.5}, *others]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (record,) = compare_runs([read_run(folder)]).records
    assert record.curves["env/search-gen/success"] == [0.5, None, None]


def test_curves_are_compared_step_by_step(run):
    """Runs with three steps each were taken for alike, and the second step of one was averaged with the first."""
    runs = [without_steps(run(f"mine-{seed}", seed=seed, steps=4), lost) for seed, lost in ((0, 1), (1, 4))]
    compared, told = in_common(compare_runs([read_run(folder) for folder in runs]))
    assert [record.curves["step"] for record in compared.records] == [[2, 3], [2, 3]]
    assert [len(record.curves["success_rate"]) for record in compared.records] == [2, 2]
    assert told.startswith("The runs do not have the same learner steps. Curves and the columns made from them are of "
                           "the 2 that all have; ")
