"""Games with Gymnasium's reset and step as environments, and the check that they are pure."""

import random

import numpy as np
import pytest

from envservice.gymnasium_text import TextEnvironment, plays_twice, text_spec
from envservice.registry import make_template
from services.config.tree import EnvSection
from services.errors import EnvFault, UserError


class Dice:
    """Guess what the next throw is; `shared` draws from a generator that all games share."""

    def __init__(self, shared: random.Random | None = None) -> None:
        self._shared = shared

    def reset(self, *, seed=None, options=None):
        self._rng = self._shared or random.Random(seed)
        self._left = 4
        return "Guess.", {"admissible_actions": list("123456")}

    def step(self, action):
        thrown, self._left = str(self._rng.randint(1, 6)), self._left - 1
        won = action == thrown
        return f"It is {thrown}.", float(won), won, self._left == 0, {"admissible_actions": list("123456")}


def environment(shared: random.Random | None = None) -> TextEnvironment:
    return TextEnvironment(lambda: Dice(shared), name="dice", version="1", sizes=(40, 8, 8))


def test_tasks_are_seeds_and_no_seed_is_in_two_splits():
    splits = [environment().tasks(split) for split in environment().training_splits()]
    assert [len(tasks) for tasks in splits] == [40, 8, 8]
    assert all(tasks == sorted(tasks) for tasks in splits)
    seeds = [task.rpartition("/")[2] for tasks in splits for task in tasks]
    assert len(set(seeds)) == 56
    with pytest.raises(UserError, match="choose one of train, valid, heldout"):
        environment().tasks("test")


@pytest.mark.parametrize("task", [
    "dice/train/00000040", "dice/valid/00000000", "dice/train/0", "dice/train/x", "dice/train", "nim/train/00000000",
    "dice/train/00000000/x", "dice/train/0000000²"])
def test_any_other_id_is_unknown(task: str):
    for ask in (environment().open, environment().task_digest, environment().task_type):
        with pytest.raises(KeyError):
            ask(task)


class Door:
    """It opens once and tells its state."""

    def reset(self, *, seed=None, options=None):
        self._open = False
        return "A door.", {"state_id": "shut"}

    def step(self, action):
        before, self._open = self._open, self._open or action == "open"
        return "A door.", 0.0, False, False, {"state_id": ["shut", "open"][self._open],
                                              "unchanged": self._open == before}


def test_a_game_may_tell_its_state_and_what_changed_nothing():
    session = TextEnvironment(Door, name="door", version="1", sizes=(1, 1, 1)).open("door/train/00000000")
    told = [session.reset(), session.step("wait"), session.step("open")]
    assert [(one.state, one.unchanged) for one in told] == [("shut", False), ("shut", True), ("open", False)]


def test_an_outcome_is_what_the_game_gave():
    session = environment().open("dice/train/00000003")
    assert session.reset().admissible_actions == list("123456")
    throws = random.Random(3)
    miss, hit = throws.randint(1, 6), throws.randint(1, 6)
    missed = session.step(str(miss % 6 + 1))
    assert (missed.observation, missed.reward, missed.done, missed.won) == (f"It is {miss}.", 0.0, False, False)
    found = session.step(str(hit))
    assert (found.observation, found.reward, found.done, found.won) == (f"It is {hit}.", 1.0, True, True)


def test_truncation_ends_an_episode_without_winning_it():
    session = environment().open("dice/train/00000000")
    session.reset()
    for _ in range(3):
        assert not session.step("no").done
    last = session.step("no")
    assert (last.done, last.won, last.truncated, last.ended("context")) == (True, False, True, "turns")


def test_a_game_that_ends_at_its_limit_was_not_cut():
    """The fourth throw, the last one, is guessed right."""
    session = environment().open("dice/train/00000000")
    session.reset()
    throws = random.Random(0)
    last_throw = [str(throws.randint(1, 6)) for _ in range(4)][-1]
    last = [session.step(guess) for guess in ("no", "no", "no", last_throw)][-1]
    assert (last.done, last.truncated, last.ended("context")) == (True, False, "won")


def test_digests_are_those_of_version_and_seed():
    one, other = environment(), TextEnvironment(Dice, name="dice", version="2", sizes=(40, 8, 8))
    assert one.digest("valid") == environment().digest("valid") != other.digest("valid")
    first, second = one.tasks("valid")[:2]
    assert one.task_digest(first) == environment().task_digest(first) != other.task_digest(first)
    assert one.task_digest(first) != one.task_digest(second)


def test_a_game_of_its_seed_passes_the_check_and_one_of_shared_chance_does_not():
    pure, impure = environment(), environment(random.Random(0))
    for task in pure.tasks("train"):
        plays_twice(pure, task)
    with pytest.raises(EnvFault, match="not a pure function of seed and actions"):
        plays_twice(impure, "dice/train/00000000")


def test_a_spec_has_prompts_for_any_text(monkeypatch: pytest.MonkeyPatch):
    spec = text_spec(Dice, name="dice", max_steps=4)
    monkeypatch.setattr("envservice.registry.find_spec", {"dice": spec}.__getitem__)
    assert make_template(EnvSection(name="dice")).chat
    assert not make_template(EnvSection(name="dice", prompt="compact")).chat
    assert spec.open(EnvSection()).name == "dice"


@pytest.mark.parametrize("sizes", [(1,), 5, (10, 5, -1), (10, 5, 1.5), (10**8, 1, 1)])
def test_sizes_of_another_form_are_refused_in_one_line(sizes):
    with pytest.raises(UserError) as error:
        text_spec(Dice, name="dice", sizes=sizes)
    assert str(error.value) == (f"the game dice has sizes={sizes}; give the tasks of train, valid and heldout, "
                                "100,000,000 at most, as (1000, 100, 300)")


class Given:
    """A game that returns what it was given."""

    def __init__(self, reset, step=None):
        self._reset, self._step = reset, step

    def reset(self, *, seed):
        return self._reset

    def step(self, action):
        return self._step


@pytest.mark.parametrize(("reset", "step", "said"), [
    ("hi", None, r"its reset returned str 'hi', and not \(text, info\)"),
    (None, None, r"its reset returned NoneType None, and not"),
    (({"text": "hi"}, {}), None, r"its reset returned dict {'text': 'hi'} as text, in \(text, info\)"),
    (("hi", None), None, "its reset returned NoneType None as info"),
    (("hi", {"admissible_actions": "go"}), None, "its admissible_actions are str 'go', and not a list of texts"),
    (("hi", {"state_id": None}), None, "its state_id is NoneType None, and not a text or a whole number"),
    (("hi", {"state_id": np.arange(3)}), None, r"its state_id is ndarray array\(.*\), and not a text"),
    (("hi", {}), ("x", 1.0, "False", False, {}), "its step returned str 'False' as terminated, and not True or False"),
    (("hi", {}), ("x", 1.0, True, False, {"won": "no"}), "its step returned str 'no' as won, and not True or False"),
    (("caf\udce9", {}), None, "its reset returned an observation with half of a surrogate pair, which UTF-8 lacks"),
    (("hi", {}), ("x", 1.0, True, {}), r"its step returned tuple .*, and not \(text, reward, terminated, trun"),
    (("hi", {}), ("x", "1", True, False, {}), "its step returned str '1' as reward"),
    (("hi", {}), ("x", float("nan"), True, False, {}), "its step returned the reward nan, which is no finite number"),
])
def test_a_game_that_returns_something_else_is_told_so_in_one_line(reset, step, said):
    games = TextEnvironment(lambda: Given(reset, step), name="given", version="1", sizes=(1, 1, 1))
    with pytest.raises(EnvFault, match=said) as caught:
        plays_twice(games, "given/train/00000000")
    assert "\n" not in str(caught.value)
