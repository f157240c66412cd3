"""The experiment `gradient`: log-linear starts on generated games, and first steps of runs read back."""

import argparse
from pathlib import Path

import numpy as np
import pytest

from lab.experiments.gradient import experiment as gradient
from lab.experiments.gradient.first_steps import first_step
from lab.experiments.loglinear import experiment as loglinear
from learner.rows.batch import assign_credit
from services.config.file import dump_config
from services.config.tree import Config
from services.errors import UserError
from services.records import Episode, Step, Ticket
from services.store.archive import ArchiveRow, EpisodeArchive


def episodes(config: Config) -> list[list[Episode]]:
    """Two groups: the steps share states, some actions change nothing, and the second one is cut off."""
    rng = np.random.default_rng(3)

    def step(t: int, reward: float) -> Step:
        return Step(observation=f"room {t % 2}", prompt_ids=rng.integers(0, 97, 4, dtype=np.int32),
                    response_ids=rng.integers(0, 97, t + 1, dtype=np.int32),
                    logprobs=-rng.random(t + 1, dtype=np.float32), spans=[], action=f"go {t}", valid=t != 1,
                    admissible=t != 2, reward=reward, choices=f"c{t % 2}", state="", unchanged=t == 1, tag="")

    def episode(g: int, k: int) -> Episode:
        won = k == 0
        ticket = Ticket(group=f"train/{g:08d}", k=k, size=2, task=f"t/{g}", seed=k, kind="train", temperature=0.7,
                        max_steps=9)
        steps = [step(t, 10.0 * (won and t == 2)) for t in range(3)]
        return Episode(ticket=ticket, steps=steps, won=won, end="won" if won else "turns", worker="w", attempt=1,
                       seconds=0.1, engine="e", final_observation="The end.")

    return [[episode(g, k) for k in range(config.learner.group_size)] for g in range(2)]


@pytest.fixture
def a_run(tmp_path: Path, tied_folder: Path):
    """Provides the factory of a run's folder with one learner step."""
    def make(name: str, model: Path = tied_folder, *, seed: int = 0, size: int = 2) -> tuple[Path, list[list[Episode]]]:
        folder = tmp_path / name
        config = Config.model_validate({"name": name, "seed": seed, "steps": 1, "runs_dir": tmp_path,
                                        "sft": {"enabled": False},
                                        "model": {"path": str(model)},
                                        "learner": {"groups_per_step": 2, "group_size": size}})
        folder.mkdir()
        dump_config(config, folder / "config.yaml")
        (folder / "run.json").write_text("{}")
        groups = episodes(config)
        with EpisodeArchive(folder / "episodes") as archive:
            archive.write(1, [ArchiveRow(episode=one, outcome="trained") for group in groups for one in group])
        return folder, groups

    return make


def test_a_first_step_is_read_as_it_was_trained_on(a_run):
    folder, groups = a_run("mine")
    found = first_step(folder)
    assert [[one.ticket.k for one in group] for group in found.groups] == [[0, 1], [0, 1]]
    for own, read in zip((s for g in groups for e in g for s in e.steps),
                         (s for g in found.groups for e in g for s in e.steps), strict=True):
        for name in Step.__struct_fields__:
            np.testing.assert_array_equal(getattr(read, name), getattr(own, name), err_msg=name)
    for key in ("observation", "observation+admissible"):
        credit = found.config.learner.credit.model_copy(update={"state_key": key, "stay": True})
        assert [one.advantages for one in assign_credit(found.groups, credit)] == [
            one.advantages for one in assign_credit(groups, credit)]


def test_the_policy_of_a_run_that_imitated_from_a_model_is_its_cold_start(a_run):
    folder, _ = a_run("mine")
    assert first_step(folder).policy.name != "model-cold-start"
    assert first_step(folder, ["sft.enabled=true"]).policy == folder / "model-cold-start"


def args_of(out: Path, **more) -> argparse.Namespace:
    return argparse.Namespace(**{"out": out, "runs": None, "arms": None, "seeds": None, "overrides": []} | more)


def test_runs_are_compared_from_their_own_policy(a_run, tmp_path: Path, capsys):
    runs = [a_run(name, seed=seed)[0] for seed, name in enumerate(("first", "second"))]
    assert gradient.run(args_of(tmp_path / "out", runs=runs, arms="gagpo,gigpo",
                                overrides=["learner.groups_per_step=1"])) == 0
    shown = capsys.readouterr().out
    assert "first policy of first, second, 50% won, 4 groups, 1 of them a step: plain gradients" in shown
    assert [line.split()[0] for line in shown.splitlines() if line.startswith("  g")] == ["gagpo", "gigpo"] * 2
    assert (tmp_path / "out/first-second.md").read_text() == f"```text\n{shown}```\n"


def test_the_table_of_many_runs_has_a_name_that_a_file_can_have():
    """It was made for an hour, and then lost."""
    runs = [Path(f"runs/gigpo-seed{number}") for number in range(100, 140)]
    assert gradient._name(runs[:2]) == "gigpo-seed100-gigpo-seed101"
    assert gradient._name(runs) == "gigpo-seed100-and-39-more"


def test_runs_of_other_policies_and_runs_without_a_step_are_refused(a_run, tmp_path: Path, tiny_model):
    other = tmp_path / "other-model"
    tiny_model(tied=True, seed=1).save_pretrained(other)
    first, second = a_run("first")[0], a_run("second", other)[0]
    with pytest.raises(UserError, match=r"second began with another policy than .*first"):
        gradient.run(args_of(tmp_path, runs=[first, second]))
    dropped = first / "episodes/step-00000001-dropped-0001.parquet"
    (first / "episodes/step-00000001.parquet").rename(dropped)
    with pytest.raises(UserError, match="first has no groups of a first learner step"):
        gradient.run(args_of(tmp_path, runs=[first]))
    dropped.unlink()
    with pytest.raises(UserError, match="first has no archive of learner step 1"):
        gradient.run(args_of(tmp_path, runs=[first]))


def test_runs_whose_groups_are_one_episode_are_refused(a_run, tmp_path: Path):
    """They ended in a division by zero."""
    with pytest.raises(UserError, match=r"alone has a group of one episode, .*learner\.group_size of at least 2"):
        gradient.run(args_of(tmp_path, runs=[a_run("alone", size=1)[0]]))


def test_groups_that_would_enter_twice_and_arms_with_a_critic_are_refused(a_run, tmp_path: Path):
    first, twin = a_run("first")[0], a_run("twin")[0]
    with pytest.raises(UserError, match=r"twin has the seed 0 of another run, and so the same groups"):
        gradient.run(args_of(tmp_path, runs=[first, twin]))
    with pytest.raises(UserError, match=r"the arm ppo has a critic, whose advantages no archive holds"):
        gradient.run(args_of(tmp_path, runs=[first], arms="gagpo,ppo"))


@pytest.mark.parametrize(("more", "option"), [
    ({"runs": [Path("r")], "seeds": 3}, "--seeds 3 does nothing with --runs"),
    ({"overrides": ["steps=1"]}, "steps=1 does nothing without --runs")])
def test_options_of_the_other_kind_of_policy_are_refused(tmp_path: Path, more: dict[str, object], option: str):
    with pytest.raises(UserError, match=option):
        gradient.run(args_of(tmp_path, **more))


def test_gradients_that_do_not_fit_into_memory_are_refused_before_they_are_made(
        a_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lab.experiments.gradient.first_steps.available_memory", lambda: 1 << 20)
    with pytest.raises(UserError, match=r"gradients of 7 estimators, 2 groups and .* GiB, and 0 are free"):
        gradient.run(args_of(tmp_path, runs=[a_run("first")[0]]))


def test_the_log_linear_starts_have_a_table_each(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    for name, value in (("CLONED_GAMES", 2), ("CLONE_ROWS", 5), ("GROUPS", 1), ("K", 2)):
        monkeypatch.setattr(loglinear, name, value)
    monkeypatch.setattr(gradient, "STEPS_LATER", (1, 2))
    for cached in (loglinear._environment, loglinear.cloned):
        cached.cache_clear()
    assert gradient.run(args_of(tmp_path, seeds=3, arms="gagpo,graph+stay")) == 0
    for cached in (loglinear._environment, loglinear.cloned):
        cached.cache_clear()
    shown = capsys.readouterr().out
    titles = [line.split(", ")[0] for line in shown.splitlines() if "3 groups, 8 of them a step" in line]
    assert list(dict.fromkeys(titles)) == [
        "warm start", "blind start", "clumsy start", "after 1 steps of gagpo", "after 2 steps of gagpo",
        "after 1 steps of gigpo", "after 2 steps of gigpo"]
    endings = [line.split(": ")[1] for line in shown.splitlines() if line.startswith("warm start")]
    assert endings == ["plain gradients", "as Adam scales them"]
    with pytest.raises(UserError, match="there is no arm 'gagpoo'"):
        gradient.run(args_of(tmp_path, arms="gagpoo"))
