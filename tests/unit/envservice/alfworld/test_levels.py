"""Levels of generalisation: types and rooms of each split, on official and on generated games."""

import pytest
from pydantic import ValidationError

from envservice.alfworld.environment import LEVELS, TRAIN, VALID, AlfworldEnvironment, LevelGames, open_environment
from envservice.alfworld.generator import parse_task_id
from envservice.alfworld.tasks import GeneratedGames, OfficialGames, task_type
from services.config.env import AlfworldSection, EnvSection
from services.errors import UserError

PICK, COOL = "pick_and_place_simple-Mug-None-Desk-{}", "pick_cool_then_place_in_recep-Mug-None-Desk-{}"


@pytest.fixture
def root(tmp_path):
    """Twelve rooms of each type in train, one in valid_seen and one in valid_unseen. Listing reads one flag alone."""
    for folder in (PICK, COOL):
        for split, rooms in (("train", range(12)), ("valid_seen", (3,)), ("valid_unseen", (20,))):
            for room in rooms:
                trial = tmp_path / "json_2.1.1" / split / folder.format(room) / "trial_T"
                trial.mkdir(parents=True)
                (trial / "game.tw-pddl").write_text('{"solvable": true}')
    return tmp_path


def test_levels_of_official_games(root):
    """All types in seen rooms, all types in unseen rooms, unseen types in unseen rooms. L2 trains without those."""
    games = LevelGames(OfficialGames(root), "L2", ["cool"])
    assert games.training_splits == (TRAIN, VALID, "L2")
    for level in ("L0", "L1"):
        assert LevelGames(OfficialGames(root), level, ["cool"]).training_splits == ("train_kept", "heldout", level)
    assert games.tasks("L0") == tuple(f"alfworld/valid_seen/{kind.format(3)}/trial_T" for kind in (PICK, COOL))
    assert games.tasks("L1") == tuple(f"alfworld/valid_unseen/{kind.format(20)}/trial_T" for kind in (PICK, COOL))
    assert games.tasks("L2") == (f"alfworld/valid_unseen/{COOL.format(20)}/trial_T",)
    assert {task_type(task) for task in (*games.tasks(TRAIN), *games.tasks(VALID))} == {"pick"}
    assert sorted((*games.tasks(TRAIN), *games.tasks(VALID))) == [
        task for task in games.tasks("train") if task_type(task) == "pick"]
    assert games.splits() == ["train", "valid_seen", "valid_unseen", "train_kept", "heldout", TRAIN, VALID, *LEVELS]
    assert games.content(games.tasks("L2")[0]) == b'{"solvable": true}'


def test_levels_of_generated_games():
    """384 of 768 held-out games are in unseen rooms, 64 of each type; two types of six are unseen."""
    games = LevelGames(GeneratedGames(), "L2", ["cool", "two"])
    counted = {split: len(games.tasks(split)) for split in (TRAIN, VALID, *LEVELS)}
    assert counted == {TRAIN: 2000, VALID: 96, "L0": 384, "L1": 384, "L2": 128}
    assert not set(games.tasks("L0")) & set(games.tasks("L1"))
    assert {task_type(task) for task in games.tasks("L2")} == {"cool", "two"}
    rounds = {split: {parse_task_id(task)[1] // 6 % 2 for task in games.tasks(split)} for split in LEVELS}
    assert rounds == {"L0": {0}, "L1": {1}, "L2": {1}}


def test_the_config_chooses_the_level(monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    environment = open_environment(EnvSection(alfworld=AlfworldSection(level="L2", unseen_types=("heat",))))
    assert environment.training_splits() == (TRAIN, VALID, "L2")
    assert {environment.task_type(task) for task in environment.tasks("L2")} == {"heat"}
    narrow = open_environment(EnvSection(alfworld=AlfworldSection(level="L2", task_types=("pick",))))
    with pytest.raises(UserError, match="the split L2 of alfworld-gen has no game of the types pick"):
        narrow.tasks("L2")


def test_all_training_games_are_reported_on_unseen_rooms(root):
    environment = AlfworldEnvironment(OfficialGames(root, all_games=True))
    train, valid, test = map(environment.tasks, environment.training_splits())
    assert (len(train), len(valid), len(test)) == (24, 2, 2)
    chosen = open_environment(EnvSection(data=root, alfworld=AlfworldSection(training_games="all")))
    assert chosen.training_splits() == ("train", "valid_seen", "valid_unseen")


@pytest.mark.parametrize(("settings", "text"), [
    ({"level": "L0", "training_games": "all"}, "set training_games=kept"),
    ({"level": "L2", "task_types": ("cool", "two")}, "has no type to train on")])
def test_impossible_levels_are_refused_with_the_reason(settings, text):
    with pytest.raises(ValidationError, match=text):
        AlfworldSection(**settings)
