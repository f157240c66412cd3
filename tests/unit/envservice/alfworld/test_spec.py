"""ALFWorld's answers to plan, doctor and preflight, and the games that a task id names."""

import importlib.util
import json
from pathlib import Path

import pytest

from envservice.alfworld.spec import SPEC
from envservice.alfworld.tasks import GeneratedGames
from envservice.registry import open_holding
from services.config.env import AlfworldSection, EnvSection
from services.errors import EnvFault, UserError


@pytest.mark.parametrize(("games", "status"), [(0, "error"), (2, "ok")])
def test_game_data_that_is_set_must_be_there(games: int, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for index in range(games):
        trial = tmp_path / "json_2.1.1" / "train" / "pick" / f"trial_{index}"
        trial.mkdir(parents=True)
        (trial / "game.tw-pddl").touch()
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    finding = next(iter(SPEC.findings()))
    assert (finding.status, finding.detail) == (status, f"train {games}, valid_seen 0, valid_unseen 0")


@pytest.mark.parametrize("grammar", [True, False])
def test_games_from_before_alfworld_0_4_are_told_with_how_to_get_the_present_ones(
        grammar: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The doctor counted their files and said `ok`. Their domain and their grammar are others."""
    games = GeneratedGames()
    game = json.loads(games.content(games.tasks("train")[0]))
    game["grammar" if grammar else "pddl_domain"] += "\n; put X in/on Y"
    trial = tmp_path / "json_2.1.1" / "train" / "pick_and_place_simple-Mug-None-Shelf-1" / "trial_T1"
    trial.mkdir(parents=True)
    (trial / "game.tw-pddl").write_text(json.dumps(game | {"solvable": True}))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    finding = next(iter(SPEC.findings()))
    assert (finding.status, finding.detail) == (
        "warning", "the games of train are from before alfworld 0.4, and no run can play them")
    assert "alfworld-download" in finding.fix
    environment = SPEC.open(EnvSection(data=tmp_path))
    with pytest.raises(UserError, match=r"trial_T1 is old: .*; get the present games .*alfworld-download"):
        SPEC.check(environment, environment.tasks("train")[0])


def test_the_doctor_misses_every_package_that_the_shipped_engine_imports(monkeypatch: pytest.MonkeyPatch):
    """It did not ask for the planner, so a machine without it was `installed` and refused each run."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "fast_downward" else find(name))
    finding = list(SPEC.findings())[1]
    assert finding.status == "warning"
    assert "fast_downward missing: no env.alfworld.engine=textworld" in finding.detail


def test_the_plan_says_whose_games_which_types_and_which_engine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    env = EnvSection(alfworld=AlfworldSection(task_types=("pick", "heat")))
    assert SPEC.describe(env) == "generated, types pick, heat, engine own"
    assert SPEC.describe(env.model_copy(update={"data": Path("there")})).startswith("official, in there, ")
    monkeypatch.setenv("ALFWORLD_DATA", "elsewhere")
    assert SPEC.describe(env).startswith("official, in elsewhere, ")


def test_the_plan_says_that_generated_games_know_no_choice_of_official_ones(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    env = EnvSection(alfworld=AlfworldSection(training_games="all"))
    assert "training_games=all chooses official ones, and does nothing" in SPEC.describe(env)
    monkeypatch.setenv("ALFWORLD_DATA", "elsewhere")
    assert "nothing" not in SPEC.describe(env)


def test_generated_games_are_found_by_their_id_where_official_ones_are_the_default(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    assert open_holding(EnvSection(), "alfworld-gen/valid/pick-0000").name == "alfworld-gen"
    with pytest.raises(UserError, match="no ALFWorld games"):
        open_holding(EnvSection(), "alfworld/train/a/b")
    monkeypatch.delenv("ALFWORLD_DATA")
    with pytest.raises(UserError, match="ALFWORLD_DATA is not set"):
        open_holding(EnvSection(), "alfworld/train/a/b")


def test_the_check_of_a_game_parses_it(tmp_path: Path):
    trial = tmp_path / "json_2.1.1" / "train" / "pick_and_place_simple-Mug-None-Shelf-1" / "trial_T1"
    trial.mkdir(parents=True)
    (trial / "game.tw-pddl").write_text('{"pddl_problem": "", "solvable": true}')
    environment = SPEC.open(EnvSection(data=tmp_path))
    with pytest.raises(EnvFault):
        SPEC.check(environment, environment.tasks("train")[0])


def test_the_shipped_engine_is_served_in_a_thread():
    assert not SPEC.threaded(EnvSection())
    assert SPEC.threaded(EnvSection(alfworld=AlfworldSection(engine="textworld")))
