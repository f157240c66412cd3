"""The tasks of a set depend only on its name."""

import pytest

from deploy.launch.planning.task_sets import cut, open_task_sets
from deploy.runs.configs import load_config
from deploy.training.prompting import make_plan
from services.errors import UserError

TASKS = [f"toy/valid/{n:03d}" for n in range(100)]


def test_a_panel_is_sorted_distinct_and_the_same_whatever_the_order():
    panel = cut(TASKS, 20, name="heldout", key="eval.panel")
    assert len(set(panel)) == 20
    assert list(panel) == sorted(panel)
    assert cut(TASKS[::-1], 20, name="heldout", key="eval.panel") == panel


def test_names_give_different_panels_and_neither_is_the_head_of_the_list():
    assert cut(TASKS, 20, name="heldout", key="eval.panel") != cut(TASKS, 20, name="validation", key="eval.episodes")
    assert cut(TASKS, 20, name="heldout", key="eval.panel") != tuple(TASKS[:20])


def test_a_task_set_may_be_a_whole_split_or_empty():
    assert cut(TASKS, 100, name="heldout", key="eval.panel") == tuple(TASKS)
    assert cut(TASKS, 0, name="heldout", key="eval.panel") == ()


def test_more_than_there_are_says_what_to_lower(monkeypatch: pytest.MonkeyPatch):
    said = "has 100 games of the chosen kinds, and 101 are asked for; lower eval.panel"
    with pytest.raises(UserError, match=rf"{said}, or choose more of them by the settings in env$"):
        cut(TASKS, 101, name="heldout", key="eval.panel")
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(UserError, match=r"100000 are asked for; lower eval\.episodes, or"):
        open_task_sets(load_config("alfworld-tiny", ["eval.episodes=100000"]))


def test_a_config_of_the_official_games_says_that_generated_ones_are_too_few(monkeypatch: pytest.MonkeyPatch):
    """The official held-out games are 978, all of which alfworld-best plays; of generated ones there are 768."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(UserError, match=r"768 games .* 978 are asked .*, or set env\.data to the data of alfworld"):
        open_task_sets(load_config("alfworld-best"))


def test_an_evaluation_names_its_own_option(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(UserError, match=r"100000 are asked for; lower --episodes \(eval\.panel\), or"):
        make_plan(load_config("alfworld-tiny", ["eval.panel=100000"]), "react", None)


def test_a_runs_panels_are_disjoint_and_do_not_depend_on_its_seed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    panels = open_task_sets(load_config("alfworld-tiny", ["eval.episodes=8", "eval.panel=16"]))
    assert panels.env_name == "alfworld-gen"
    assert (len(panels.validation), len(panels.heldout)) == (8, 16)
    train = set(panels.train)
    assert not train & set(panels.validation)
    assert not train & set(panels.heldout)
    assert not set(panels.validation) & set(panels.heldout)
    assert open_task_sets(load_config("alfworld-tiny", ["seed=7", "eval.episodes=8", "eval.panel=16"])) == panels


@pytest.mark.parametrize("level", ["all", "L1"])
def test_an_evaluation_of_the_held_out_split_plays_a_runs_games(level: str, monkeypatch: pytest.MonkeyPatch):
    """Whatever the split is called; games of another split are other games anyway."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    config = load_config("alfworld-tiny", [f"env.alfworld.level={level}", "eval.episodes=8", "eval.panel=16"])
    panels, alone = open_task_sets(config), make_plan(config, "react", None)
    assert (alone.split, alone.tasks) == (panels.heldout_split, panels.heldout)
    assert make_plan(config, "react", panels.heldout_split).tasks == panels.heldout


def test_evaluations_on_the_panel_play_its_games(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    on_panel = ["eval.episodes=8", "eval.on_panel=true"]
    panels = open_task_sets(load_config("alfworld-tiny", [*on_panel, "eval.panel=16"]))
    assert panels.validation == panels.heldout
    assert panels.validation_split == panels.heldout_split
    with pytest.raises(UserError, match=r"eval\.panel=0 leaves no games to evaluate on; set eval\.panel"):
        open_task_sets(load_config("alfworld-tiny", [*on_panel, "eval.panel=0"]))


def test_panels_say_what_plays_them_and_so_does_the_name_that_a_folder_is_held_to():
    """verl_compat changes prices and splits: its results are others, and a run never goes on from one to the other."""
    small = ["eval.episodes=8", "eval.panel=8"]
    fixed = open_task_sets(load_config("webshop-tiny", small))
    compat = open_task_sets(load_config("webshop-tiny", [*small, "env.webshop.verl_compat=true"]))
    assert fixed.engine.startswith("own 1+catalogue+")
    assert "verl-compat" not in fixed.engine
    assert compat.engine.startswith("own 1+catalogue+")
    assert compat.engine.endswith("+verl-compat")
    assert compat.games.endswith(f"), {compat.engine}")
    assert fixed.games.endswith(f"), {fixed.engine}")
