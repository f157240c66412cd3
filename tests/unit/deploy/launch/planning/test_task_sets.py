"""The tasks of a set depend only on its name."""

import pytest

from deploy.launch.planning.task_sets import AskedGames, check_enough, cut, open_task_sets
from deploy.runs.configs import load_config
from deploy.training.prompting import make_plan
from services.errors import UserError

TASKS = [f"toy/valid/{n:03d}" for n in range(100)]


def test_a_panel_is_sorted_distinct_and_the_same_whatever_the_order():
    panel = cut(TASKS, 20, name="heldout")
    assert len(set(panel)) == 20
    assert list(panel) == sorted(panel)
    assert cut(TASKS[::-1], 20, name="heldout") == panel


def test_names_give_different_panels_and_neither_is_the_head_of_the_list():
    assert cut(TASKS, 20, name="heldout") != cut(TASKS, 20, name="validation")
    assert cut(TASKS, 20, name="heldout") != tuple(TASKS[:20])
    assert (cut(TASKS, 100, name="heldout"), cut(TASKS, 0, name="heldout")) == (tuple(TASKS), ())


def test_one_refusal_names_all_keys_that_ask_for_more_games_than_there_are(monkeypatch: pytest.MonkeyPatch):
    """Each was refused alone, so that a small dataset took three starts."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    few, ways = "too few games of the chosen kinds: ", ", or choose more games by the settings in env, or set env.data"
    panel, episodes = "eval.panel asks for 5,000 and the heldout split has 256", "eval.episodes asks for 1,000 and the"
    with pytest.raises(UserError, match=f"^{few}{episodes} validation split has 48; lower it{ways}"):
        open_task_sets(load_config("alfworld-tiny", ["eval.episodes=1000"]))
    step = "learner.groups_per_step asks for 2,000 and the train split has 1,000"
    with pytest.raises(UserError, match=f"^{few}{panel}, {episodes} .*, {step}; lower them{ways}"):
        open_task_sets(load_config("alfworld-tiny", [
            "eval.panel=5000", "eval.episodes=1000", "learner.groups_per_step=2000"]))
    with pytest.raises(UserError, match=f"^{few}{panel}, {step}; lower them"):
        open_task_sets(load_config("alfworld-tiny", [
            "eval.on_panel=true", "eval.panel=5000", "learner.groups_per_step=2000"]))


def test_a_config_of_the_official_games_says_that_generated_ones_are_too_few(monkeypatch: pytest.MonkeyPatch):
    """The official held-out games are 978, all of which alfworld-best plays; of generated ones there are 768."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(UserError, match=r"asks for 978 and .* has 768; .*, or set env\.data to the data of alfworld"):
        open_task_sets(load_config("alfworld-best"))


def test_a_split_without_a_published_one_of_more_games_names_the_settings_alone():
    with pytest.raises(UserError, match=r"split has 1; lower it, or choose more games by the settings in env$"):
        check_enough(AskedGames("eval.panel", 2, "heldout", ["toy/valid/0"]),
                     AskedGames("eval.episodes", 1, "valid", ["a"]))


def test_an_evaluation_names_its_own_option(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(UserError, match=r": --episodes \(eval\.panel\) asks for 100,000 and"):
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
