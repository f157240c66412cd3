"""The driver's side of a cold start on the learner's ranks, which are played by threads of no Ray."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from deploy.runs.configs import load_config
from deploy.training import rank_imitation
from deploy.training.rank_imitation import ImitatingRanks, imitate
from learner.cold_start.sft import Budget, Lesson, SftProgress
from learner.cold_start.sft_data import PROGRESS, ROWS, TokenRow, load_rows
from services.controller.member import End
from services.errors import Fault, UserError

LESSON = Lesson([TokenRow(ids=np.array([1, 2, 3], np.int32), prompt_tokens=1)], Budget(updates=2), 0)


def progress(seconds: float) -> dict[str, object]:
    return SftProgress(updates=1, rows=1, epochs=1.0, seconds=seconds, loss_response=1.0, loss_prompt=None).as_dict()


class Played:
    """Stands for ImitatingRanks: each poll plays the next of `scenes`, which gets the shared folder."""

    role, beat, name = "learner", "learner-0", "learner"
    scenes: list = []  # noqa: RUF012 - set by each test
    work: Path

    def __init__(self, *_, **__):
        self._left = list(self.scenes)

    def start(self):
        pass

    def lacks(self):
        return ""

    def stop(self):
        pass

    def poll(self):
        return self._left.pop(0)(self.work) if self._left else End("")


@pytest.fixture
def played(monkeypatch, tmp_path):
    """Provides imitate() with these scenes. Returns its result and the progress that was told."""
    def play(*scenes, report=lambda _: None):
        monkeypatch.setattr(rank_imitation, "LOOK_S", 0.0)
        monkeypatch.setattr(rank_imitation, "ImitatingRanks", type("P", (Played,), {
            "scenes": scenes, "work": tmp_path / ".model.ranks"}))
        monkeypatch.setattr(rank_imitation.private_ray, "check", lambda: None)
        monkeypatch.setattr(rank_imitation, "ray_cluster", lambda *_: rank_imitation.nullcontext())
        told = []
        config = load_config("alfworld-tiny", [f"runs_dir={tmp_path / 'runs'}", "learner.ranks=2"])
        made = imitate(config, tmp_path, tmp_path / "model", LESSON, report=report,
                       on_progress=lambda now: told.append(now.seconds))
        return made, told
    return play


def tells(seconds: float):
    def scene(work: Path) -> None:
        (work / PROGRESS).write_text(json.dumps({"training": progress(seconds)}))
    return scene


def test_ranks_that_begin_again_tell_their_progress_again(played):
    """The progress of the life before was further, and held back all that was earlier."""
    def sees_the_rows(work: Path) -> None:
        assert [row.ids.tolist() for row in load_rows(work / ROWS)] == [[1, 2, 3]]

    made, told = played(sees_the_rows, tells(12.0), tells(15.0), tells(30.0), tells(2.0), tells(5.0), tells(13.0))
    assert told == [12.0, 30.0, 2.0, 13.0]
    assert made == {"training": progress(13.0)}


def test_a_folder_that_is_away_for_a_while_ends_nothing(played):
    """A shared folder answers ESTALE or EIO for a while. Here it is a folder in the place of the file."""
    def away(work: Path) -> None:
        (work / PROGRESS).unlink()
        (work / PROGRESS).mkdir()

    def back(work: Path) -> None:
        (work / PROGRESS).rmdir()

    _, told = played(tells(11.0), away, lambda _: time.sleep(0.01), back, tells(25.0))
    assert told == [11.0, 25.0]


def interrupted(_: Path) -> None:
    raise KeyboardInterrupt


def test_nothing_is_left_after_an_interrupt_before_the_first_state(played, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        played(interrupted)
    assert list(tmp_path.iterdir()) == []


def test_a_state_stays_after_an_interrupt_and_until_the_model_is_whole(played, tmp_path):
    """cold_start removes it once it has written sft.json."""
    state = tmp_path / ".model.ranks" / "state-00000007"
    with pytest.raises(KeyboardInterrupt):
        played(lambda _: state.mkdir(), interrupted)
    assert state.exists()
    played(tells(1.0))
    assert state.exists()


def test_each_life_tells_once_from_where_it_goes_on(played):
    def goes_on(at: float, *lines: str):
        return lambda work: (work / PROGRESS).write_text(json.dumps({"begun": [at, lines]})) and None

    said = []
    played(goes_on(1.0, "warning: damaged", "it goes on after update 5"), lambda _: None, tells(1.0),
           goes_on(2.0, "it goes on after update 5"), report=said.append)
    assert said == ["warning: damaged", "it goes on after update 5", "it goes on after update 5"]


def test_a_failure_that_repeats_without_a_new_state_ends_the_cold_start(monkeypatch):
    """It begins at the same state each time, so it would fail at the same place for ever."""
    found, kept = iter([]), [0]
    monkeypatch.setattr(rank_imitation.LearnerRanks, "poll", lambda _: next(found))
    rank_group = ImitatingRanks(1, lambda *_: None, {"CPU": 1.0}, attempts=2, newest_state=lambda: kept[0])
    lost, fault = End("lost its node", killed=True), End("LearnerFault: not finite")
    found = iter([None, fault, None, End("", killed=False), lost, lost, lost])
    assert [rank_group.poll() for _ in range(4)] == [None, fault, None, End("")]
    kept[0] = 40
    assert rank_group.poll() == lost  # the first since update 40
    kept[0] = 20  # the newest state was damaged, and this one is older
    with pytest.raises(Fault, match=r"failed 2 times after update 40 \(learner.step_attempts\), last: lost its "):
        rank_group.poll()
    found = iter([fault])
    words = r"failed 3 times .* not finite; continue with a smaller learner.token_budget or"
    with pytest.raises(UserError, match=words):
        rank_group.poll()
