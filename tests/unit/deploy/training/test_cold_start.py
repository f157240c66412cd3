"""The examples that a demonstration gives to the cold start."""

import json

import pytest
from safetensors import safe_open

from deploy.runs.configs import load_config
from deploy.training.cold_start import _demonstrated, _examples, cold_start, demonstrations, write_demonstrations
from envservice.registry import find_teacher, make_template, open_environment
from learner.cold_start.sft_data import load_rows
from rollout.demonstrations import Demonstration, DemoStep
from services.config.tree import EnvSection
from services.errors import EnvFault, Unavailable, UserError
from services.seeds import seed_for
from services.tokenizer import load_tokenizer


def demonstration(*, won: bool) -> Demonstration:
    return Demonstration("a task", won=won, steps=[
        DemoStep("prompt one\n", "take mug 1</action>", "take mug 1", train=True, judged=("open fridge 1", False)),
        DemoStep("prompt two\n", "go to desk 1</action>", "look", train=False, judged=("go to desk 1", True)),
        DemoStep("prompt three\n", "use lamp 1</action>", "use lamp 1", train=True)])


def test_a_won_demonstration_shows_its_own_actions_and_then_its_judgements():
    """A step whose executed action is noise shows no action, but may show a judgement of the player's."""
    found = _examples(demonstration(won=True), make_template(EnvSection(prompt="compact")), ["</action>"])
    assert [(one.prompt, one.response) for one in found] == [
        ("prompt one\n", "take mug 1</action>"),
        ("prompt three\n", "use lamp 1</action>"),
        ("prompt one\nJudge: open fridge 1\n", "<action>bad</action>"),
        ("prompt two\nJudge: go to desk 1\n", "<action>good</action>")]


@pytest.mark.parametrize("prompt", ["compact", "full"])
def test_a_lost_demonstration_shows_nothing(prompt):
    assert _examples(demonstration(won=False), make_template(EnvSection(prompt=prompt)), ["</action>"]) == []


class Fragile:
    """The environment `inner`, in which opening some games raises."""

    def __init__(self, inner, raises):
        self._inner, self._raises = inner, raises

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def open(self, task):
        if error := self._raises(task):
            raise error
        return self._inner.open(task)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch):
    """Provides the demonstrations of an environment in which opening a game raises what `raises` returns for it."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    config = load_config("alfworld-tiny", ["env.alfworld.task_types=[look]", "env.max_steps=12",
                                           "sft.demos_per_game=1"])
    inner = open_environment(config.env)

    def of(raises):
        return demonstrations(config, Fragile(inner, raises), find_teacher(config.env), make_template(config.env),
                              seed=1, report=lambda _: None)

    of.tasks = inner.tasks("train")
    return of


def test_a_game_that_fails_is_left_out_of_the_demonstrations(shown):
    """One broken game of thousands ended the run, though RL would have left it out."""
    first, second = shown.tasks[:2]
    found = shown({first: EnvFault("the file is broken"), second: KeyError("lamp")}.get)
    assert (found.games, found.episodes) == (len(shown.tasks) - 2, len(shown.tasks) - 2)
    assert found.failed[first] == "the file is broken"
    assert found.failed[second].startswith("KeyError: 'lamp' (in open, test_cold_start.py:")


def test_demonstrations_wait_for_a_service_that_is_away(shown, monkeypatch: pytest.MonkeyPatch):
    """A retriever that was restarted meanwhile left its games out."""
    monkeypatch.setattr("services.outages.SERVER_PAUSE_S", 0.01)
    away = [Unavailable("no answer"), Unavailable("no answer")]
    found = shown(lambda task: away.pop() if task == shown.tasks[1] and away else None)
    assert (found.games, found.failed, away) == (len(shown.tasks), {}, [])


def test_demonstrations_of_no_game_at_all_are_a_fault_and_a_users_mistake_is_told(shown):
    with pytest.raises(EnvFault, match=f"none of the {len(shown.tasks)} games could be shown: no Java"):
        shown(lambda _: EnvFault("no Java"))
    with pytest.raises(UserError, match="no data; get it"):
        shown(lambda _: UserError("no data", "get it"))


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_cold_start_waits_for_a_disk_that_is_full_when_it_saves_its_model(tmp_path, monkeypatch, name):
    """A folder in the place of a file has the effect of a full disk: the minutes of the cold start were lost."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    config = load_config("alfworld-tiny", ["env.alfworld.task_types=[look]", "env.max_steps=12", "sft.demos_per_game=1",
                                           "model.layers=1"])
    in_place = tmp_path / "model" / name
    in_place.mkdir(parents=True)
    told: list[str] = []

    def note(line: object) -> None:
        told.append(str(line))
        if "could not be written" in told[-1]:
            in_place.rmdir()

    out = cold_start(config, tmp_path / "model", minutes=0.01, report=note)
    assert "Is a directory" in next(line for line in told if line.endswith("waiting for the folder"))
    with safe_open(out / "model.safetensors", framework="pt") as weights:
        assert list(weights.keys())
    assert load_tokenizer(out).encode("take")
    assert json.loads((out / "sft.json").read_text())["training"]["updates"] > 0


def test_imitation_during_rl_shows_the_rows_of_the_cold_start_in_every_life(tmp_path, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    config = load_config("alfworld-tiny", ["env.alfworld.task_types=[look]", "env.max_steps=12", "sft.demos_per_game=1",
                                           "model.layers=1"])
    out = cold_start(config, tmp_path / "model", minutes=0.001, report=str)
    _, _, trained_on = _demonstrated(config, None, seed=seed_for(config.seed, "sft", "start"), report=str, passing=str)
    for life in ("first.npz", "second.npz"):
        write_demonstrations(config, out, tmp_path / life, report=str)
        rows = load_rows(tmp_path / life)
        assert [row.ids.tolist() for row in rows] == [row.ids.tolist() for row in trained_on]
        assert [row.prompt_tokens for row in rows] == [row.prompt_tokens for row in trained_on]


@pytest.mark.parametrize("start", [None, "model"])
def test_a_scripted_player_that_never_wins_is_named(tmp_path, monkeypatch, start):
    """In two turns no lamp is found. The message was a tokenizer's, or that all 0 steps were too long."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    config = load_config("alfworld-tiny", ["env.alfworld.task_types=[look]", "env.max_steps=2", "sft.demos_per_game=1"])
    if start is not None:
        (tmp_path / start).mkdir()
        (tmp_path / start / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"the scripted player of alfworld won 0 of \d+ episodes"):
        cold_start(config, tmp_path / "out", minutes=0.01, continue_from=start and tmp_path / start)
