"""Games with Gymnasium's reset and step as environments, and the check that they are pure."""

import asyncio
import gc
import itertools
import random
import threading

import msgspec
import numpy as np
import pytest

from envservice.adapters.gymnasium import TextEnvironment, plays_twice, text_spec
from envservice.registry import make_template
from envservice.server.batches import Batches
from envservice.server.metrics import ServerMetrics
from envservice.server.sessions import SessionStore
from services.config.tree import EnvSection
from services.errors import EnvFault, UserError
from services.telemetry.logs import configure_logs


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


def test_the_check_also_compares_the_outcomes_of_its_last_action():
    plays = itertools.count()

    class Late:
        """Each play differs from all others, but only after its eighth action."""

        def reset(self, *, seed):
            self._taken, self._play = 0, next(plays)
            return "hi", {}

        def step(self, action):
            self._taken += 1
            return f"play {self._play}" if self._taken == 8 else "on", 0.0, False, False, {}

    games = TextEnvironment(Late, name="late", version="1", sizes=(1, 1, 1))
    with pytest.raises(EnvFault, match="after 8 equal actions two plays differ"):
        plays_twice(games, "late/train/00000000")


class OnlyListed(Dice):
    """Fails on an action that it does not list, as a game whose author never tried one."""

    def step(self, action):
        return super().step({number: number for number in "123456"}[action])


def test_a_game_that_fails_on_an_action_that_it_does_not_list_does_not_pass_the_check():
    games = TextEnvironment(OnlyListed, name="dice", version="1", sizes=(1, 1, 1))
    with pytest.raises(KeyError):
        plays_twice(games, "dice/train/00000000")


def test_a_spec_has_prompts_for_any_text(monkeypatch: pytest.MonkeyPatch):
    spec = text_spec(Dice, name="dice", max_steps=4)
    monkeypatch.setattr("envservice.registry.find_spec", {"dice": spec}.__getitem__)
    assert make_template(EnvSection(name="dice")).chat
    assert not make_template(EnvSection(name="dice", prompt="compact")).chat
    assert spec.open(EnvSection()).name == "dice"


class Asking:
    """A game that runs an event loop in each step, as clients of browsers do."""

    def reset(self, *, seed):
        return "Ask.", {}

    def step(self, action):
        return asyncio.run(asyncio.sleep(0, ("Told.", 0.0, False, False, {})))


async def test_a_threaded_game_may_run_an_event_loop():
    spec = text_spec(Asking, name="asking", sizes=(1, 1, 1), threaded=True)
    store = SessionStore(spec.open(EnvSection()))
    batches = Batches(store, ServerMetrics("asking", store), threaded=spec.threaded(EnvSection()))

    async def told(verb, **fields):
        element = {"episode_id": "e", "task": "asking/train/00000000", **fields}
        return msgspec.json.decode((await batches.answer(verb, msgspec.json.encode([element]), "")).body)[0]

    first = await told(batches.reset)
    stepped = await told(batches.step, actions=[], action="ask", digest=first["digest"])
    assert stepped["observation"] == "Told."


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
    (("hi", {}), ("x", float("nan"), True, False, {}), "its step returned the reward nan, which is no number"),
])
def test_a_game_that_returns_something_else_is_told_so_in_one_line(reset, step, said):
    games = TextEnvironment(lambda: Given(reset, step), name="given", version="1", sizes=(1, 1, 1))
    with pytest.raises(EnvFault, match=said) as caught:
        plays_twice(games, "given/train/00000000")
    assert "\n" not in str(caught.value)


class Browser:
    """A game that holds something outside; it keeps the thread of each close in `closed`."""

    def __init__(self, closed, closes_by):
        self._closed, self._closes_by = closed, closes_by

    def reset(self, *, seed):
        return "A page.", {}

    def step(self, action):
        if action == "crash":
            raise RuntimeError("the page crashed")
        return "A page.", 0.0, False, False, {}

    def close(self):
        self._closed.append(threading.current_thread().name.partition("_")[0])
        self._closes_by()


@pytest.fixture
def log(tmp_path):
    """Yields the log's file. Cycles of objects stay meanwhile: a game must not wait for their collection."""
    configure_logs(tmp_path, show=None)
    gc.disable()
    yield tmp_path / "log.jsonl"
    gc.enable()


def browsers(closed, closes_by=int):
    return TextEnvironment(lambda: Browser(closed, closes_by), name="browser", version="1", sizes=(4, 1, 1))


@pytest.mark.parametrize("end", ["close", "crash", "expire", "clear"])
async def test_a_game_is_closed_once_when_its_session_is_dropped(end, log):
    closed, now = [], [0.0]
    store = SessionStore(browsers(closed), lease_s=10, clock=lambda: now[0])
    batches = Batches(store, ServerMetrics("browser", store), threaded=True)

    async def told(verb, **fields):
        reply = await batches.answer(verb, msgspec.json.encode([{"episode_id": "e", **fields}]), "")
        return msgspec.json.decode(reply.body)[0]

    task = "browser/train/00000000"
    first = await told(batches.reset, task=task)
    assert not closed
    if end == "close":
        await told(batches.close)
    elif end == "crash":
        broken = await told(batches.step, task=task, actions=[], action="crash", digest=first["digest"])
        assert "the page crashed" in str(broken)
    elif end == "expire":
        now[0] = 11.0
        await batches.expire()
    else:
        batches.drop_all()
    assert closed == ["MainThread" if end == "clear" else "engine"]


def leaves():
    raise SystemExit(3)


def fails():
    raise OSError("no such process")


@pytest.mark.parametrize("closes_by", [leaves, fails])
def test_a_game_that_fails_to_close_is_told_in_the_log_and_fails_nobody(closes_by, log):
    closed = []
    session = browsers(closed, closes_by).open("browser/train/00000000")
    session.reset()
    del session
    assert closed == ["MainThread"]
    assert "a game failed to close" in log.read_text()
