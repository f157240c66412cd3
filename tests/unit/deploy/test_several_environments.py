"""A run of several environments, from its plan to its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.commands.status import summary
from deploy.explorer.drawings import evaluation_charts, training_charts
from deploy.launch.checks.games import check_games
from deploy.launch.planning import plan
from deploy.launch.planning.task_sets import open_task_sets, views
from deploy.report.figures import env_figures
from deploy.runs.comparison import as_lines, compare, stand_in_notes, verdicts
from deploy.runs.configs import lay_over, load_config
from deploy.runs.export import export
from deploy.runs.folder import RunFolder, differences
from deploy.runs.policies import EXPORTED_CONFIG
from deploy.training.cold_start import _demonstrated
from learner.cold_start.scratch_model import END, train_tokenizer
from services.config.file import dump_config
from services.config.tree import Config
from services.controller.task_streams import MixedStream
from services.errors import UserError
from services.telemetry.evaluations import COLD, TRAINED, env_scores, envs_of, in_env

TWO = """base: parts/tiny-model
name: two
steps: 2
env:
- {name: guess, max_steps: 3, weight: 3}
- {name: search, max_steps: 4, prompt: compact, history: 3}
eval: {panel: 5, episodes: 4}
sft: {minutes: 0.1}
rollout: {max_prompt_tokens: 640}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return two(tmp_path)


def two(folder: Path, *overrides: str, text: str = TWO) -> Config:
    (folder / "two.yaml").write_text(text)
    return load_config(folder / "two.yaml", (f"runs_dir={folder / 'runs'}", *overrides))


def test_evaluations_have_as_many_games_of_each_environment(config: Config):
    sets = open_task_sets(config)
    assert sets.env_name == "guess+search-gen"
    assert count(sets.validation) == {"guess": 2, "search-gen": 2}
    assert count(sets.heldout) == {"guess": 3, "search-gen": 2}
    assert not {*sets.heldout} & {*sets.train, *sets.validation}
    with pytest.raises(UserError, match=r": eval\.episodes \(guess\) asks for 500 and the validation split has 100, "):
        open_task_sets(lay_over(config, {"eval.episodes": 1000}))


def count(tasks: tuple[str, ...]) -> dict[str, int]:
    names = [task.partition("/")[0] for task in tasks]
    return {name: names.count(name) for name in sorted({*names})}


def test_training_tasks_come_by_weight(config: Config):
    stream = open_task_sets(config).stream(config)
    assert isinstance(stream, MixedStream)
    assert count(tuple(stream[index] for index in range(40))) == {"guess": 30, "search-gen": 10}


def test_each_environment_is_checked_with_its_own_settings(config: Config):
    told: list[str] = []
    sets = check_games(config, told.append)
    assert [(view.env.name, part.name, len(tasks)) for view, part, tasks in views(config, sets)] == [
        ("guess", "guess", 1000), ("search", "search-gen", len(sets.train) - 1000)]
    assert told == []


def test_the_plan_shows_what_each_environment_has(config: Config):
    text = plan.describe(config)
    assert "guess, version 1, seeds as tasks, 75% of the groups, prompt full, at most 3 turns" in text
    assert "4 turns, 25% of the groups, prompt compact, at most 4 turns" in text
    assert plan.make_plan(config).rows_per_step == 128 * 4, "the longest of them"
    json.dumps(plan.as_dict(config))


def test_demonstrations_are_of_all_and_one_tokenizer_has_the_stops_of_all(config: Config):
    told: list[str] = []
    short = lay_over(config, {"sft.demos_per_game": 1})
    shown, tokenizer, rows = _demonstrated(short, None, seed=1, report=told.append, passing=lambda _: None)
    assert shown.split == "train"
    assert sum(line.startswith("demonstrations: ") for line in told) == 2
    assert len(rows) == len(shown.examples)
    assert all(len(tokenizer(stop)["input_ids"]) == 1 for stop in (".", "</search>", "</answer>"))
    first, last = (str(tokenizer.decode(row.ids[row.prompt_tokens:])) for row in (rows[0], rows[-1]))
    assert first.removesuffix(END) in map(str, range(1, 8)), "a guess, which ends with its turn"
    assert last.endswith("</answer>"), "an answer, which ends with its tag"


def test_a_run_does_not_go_on_with_other_environments(tmp_path: Path):
    before, other = two(tmp_path), two(tmp_path, text=TWO.replace("weight: 3", "weight: 2"))
    alone = two(tmp_path, text=TWO.replace("- {name: search, max_steps: 4, prompt: compact, history: 3}\n", "")
                .replace(", weight: 3", ""))
    assert differences(before, before) == []
    assert differences(before, other) == ["env.weight is 3.0 there and 2.0 here"]
    assert [line.partition(" ")[0] for line in differences(alone, before)] == ["env.more", "env.weight"]


def evaluation(label: str, guess: float, search: float) -> dict[str, Any]:
    tasks = {"guess/1": guess, "guess/2": guess, "search-gen/1": search, "search-gen/2": search}
    by_env = {"guess": guess, "search-gen": search}
    mean = sum(tasks.values()) / 4
    return {"label": label, "step": 5, "temperature": 1.0, "split": "test", "tasks": 4, "success_rate": mean,
            "success_low": 0.0, "success_high": 1.0, "success_by_task": tasks, "env": "guess+search-gen",
            "success_by_env": by_env, "success_by_env_low": dict.fromkeys(by_env, 0.0),
            "success_by_env_high": dict.fromkeys(by_env, 1.0)}


def test_the_table_has_the_success_and_the_gain_in_each_environment():
    rows = [evaluation(COLD, 0.5, 0.0), evaluation(TRAINED, 0.5, 1.0)]
    comparison = compare(rows)
    assert comparison is not None
    assert {gain.env: gain.gain for gain in comparison.gains} == {"": 0.5, "guess": 0.0, "search-gen": 1.0}
    lines = as_lines(comparison, env="guess+search-gen")
    assert lines[2:4] == ["    guess: 50.0% [0.0%, 100.0%]", "    search-gen: 0.0% [0.0%, 100.0%]"]
    assert [line.split()[:2] for line in lines[-2:]] == [["in", "guess"], ["in", "search-gen"]]
    assert len(verdicts(rows)) == 1, "of all games together"
    assert "of guess+search-gen, not of search" in verdicts(rows)[0].text
    assert stand_in_notes(rows) == ["played on search-gen: these results are not results on search"]
    assert env_scores({"success_rate": 0.5}) == ()


def test_curves_are_drawn_for_each_environment():
    rows = [evaluation("step-000000", 0.5, 0.0), evaluation("step-000005", 0.5, 1.0)]
    assert envs_of(rows) == ["guess", "search-gen"]
    assert [(row["success_rate"], row["tasks"]) for row in in_env(rows, "search-gen")] == [(0.0, 2), (1.0, 2)]
    titles = [chart.subplot.title for chart in evaluation_charts(["a"], [rows])]
    assert [title.rpartition(", in ")[2] for title in titles[1:]] == ["guess", "search-gen"]
    metrics = [{"step": step, "success_rate": 0.5, "env/guess/success": 0.5, "env/guess/groups": 4}
               for step in (1, 2)]
    assert [chart.subplot.title for chart in training_charts(["a"], [metrics])] == [
        "Success of training episodes in guess", "Success of training episodes"]
    only = {"step": 3, "success_rate": 0.5, "env/search-gen/success": 0.5, "env/search-gen/groups": 4}
    assert [chart.subplot.title for chart in training_charts(["a"], [[only, *metrics]])] == [
        "Success of training episodes in guess", "Success of training episodes in search-gen",
        "Success of training episodes"], "also of an environment without a group in the last step"
    assert env_figures(["success_rate"]) == {}


def test_an_exported_policy_of_several_environments_can_play_them_all(config: Config, tmp_path: Path):
    run, model = RunFolder(tmp_path / "run"), tmp_path / "model"
    dump_config(lay_over(config, {"env.urls": ["http://games.corp:8100"]}), run.config_file)
    train_tokenizer(["a <answer>town</answer>"], [".", "</search>", "</answer>"], "both").save_pretrained(model)
    export(run, 3, model, tmp_path / "out")
    played = load_config(tmp_path / "out" / EXPORTED_CONFIG)
    assert [(one.name, one.max_steps, one.prompt, one.weight) for one in played.env.entries] == [
        ("guess", 3, "full", 3.0), ("search", 4, "compact", 1.0)]
    card = (tmp_path / "out/README.md").read_text()
    assert "corp" not in card + (tmp_path / "out" / EXPORTED_CONFIG).read_text()
    assert "An agent for `guess`, `search`, trained" in card
    assert "`full` with a history of 2 turns in `guess`; `compact` with a history of 3 turns in `search`" in card
    generation = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert len(generation["eos_token_id"]) >= 4, "an answer ends at the tags of all, and at the end of a turn"


def test_status_shows_the_success_in_each_environment_of_the_last_steps():
    status = {"run": "r", "state": "finished", "stage": None, "step": 2, "steps": 2, "seconds_since_step": None,
              "step_times": None, "doing": "", "task_types": {}, "stand_ins": [], "warnings": [], "damaged": [],
              "verdicts": [], "next": [], "evaluations": [],
              "environments": {"guess": {"groups": 12, "success": 0.25, "contrast": 0.5}}}
    assert "  environment guess: success 25.0% in 12 groups of the last 10 steps" in summary(status)
