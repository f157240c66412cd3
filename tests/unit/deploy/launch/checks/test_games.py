"""Mistakes in an environment of the user's own, each refused in one line before anything starts."""

import re
import sys
from pathlib import Path

import pytest

from deploy.launch.checks import preflight
from deploy.runs.configs import load_config
from services.errors import UserError

RUN = ("name=own", "steps=1", "env.max_steps=8", "env.prompt=compact")
MODULE = '''
import sys
from dataclasses import replace

from envservice.adapters.gymnasium import TextEnvironment, text_spec
from envservice.text.plain_prompts import PlainTemplate
from envservice.text.response_format import answer
from envservice.spec import Teacher
from learner.credit.state_keys import Keys, NoOptions, state_key


class Game:
    def reset(self, *, seed):
        return "Say a.", {"admissible_actions": ["a", "b"]}

    def step(self, action):
        return "Done.", float(action == "a"), True, False, {}


class Player:
    def act(self, now):
        return answer("so", "a")


class Games(TextEnvironment):
    pass


class Prompt(PlainTemplate):
    pass


def teacher(**parts):
    return Teacher(**{"player": lambda first, rng, sft: Player(), **parts})


class Key:
    Options, knows_cuts = NoOptions, False

    def keys(self, group, options):
        return Keys(cut_in=[None] * len(group), steps=[[self.one(step) for step in one.steps] for one in group])

    def one(self, step):
        return state_key("", "", step.observation)


SPEC = replace(text_spec(Game, name="own", max_steps=8), teacher=teacher(), prompts={
    "compact": lambda history: Prompt(history, name="compact", chat=False)})


def opens(**parts):
    made = type("Games", (Games,), parts)
    return replace(SPEC, open=lambda env: made(Game, name="own", version="1", sizes=(1000, 100, 300)))


'''


@pytest.fixture(autouse=True)
def machine(two_cpus: None):
    """Provides a machine that is the same on any test machine."""


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes the module with more code, and returns the line by which a run of it is refused."""
    def line(code: str, *overrides: str) -> str:
        (tmp_path / "own_games.py").write_text(MODULE + code + "\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "own_games", raising=False)
        with pytest.raises(UserError) as error:
            preflight.check(load_config("parts/tiny-model", (*RUN, "env.name=own_games:SPEC", *overrides)))
        assert "\n" not in str(error.value)
        return str(error.value)

    return line


@pytest.mark.parametrize(("code", "said"), [
    ("SPEC = replace(SPEC, open=lambda: 3)", "the environment own_games:SPEC cannot be opened (TypeError: "),
    ("SPEC = replace(SPEC, open=lambda env: None)", "own_games:SPEC opens None, which has no method splits; see"),
    ("SPEC = replace(text_spec(Game, name='own', version=1), teacher=teacher())", "own_games:SPEC has version=1, wh"),
    ("SPEC = opens(replay=property(lambda self: 'Pure', lambda self, value: None))",
     "own_games:SPEC has replay='Pure'; choose one of pure, transcript, live"),
    ("SPEC = opens(training_splits=lambda self: ('train', 'valid'))", "returned ('train', 'valid'); return three na"),
    ("SPEC = opens(training_splits=lambda self: ('train', 'valid', 'train'))", "names train and valid alone; name t"),
    ("SPEC = opens(tasks=lambda self, split: list(range(300)))", "has the task 0; name tasks by texts of 1 to 400 c"),
    ("SPEC = opens(tasks=lambda self, split: map(str, range(300)))", "of own are of type map; return a list of texts"),
    ("SPEC = opens(tasks=lambda self, split: [f'own/{split}/0'] * 3)", "has the task 'own/train/0' 3 times; list each"),
    ("SPEC = opens(tasks=lambda self, split: ['own/x/0', f'own/{split}/1'])",
     "the splits 'train' and 'valid' of own share 1 task, such as 'own/x/0'; give each task to one split"),
    ("SPEC = opens(task_type=lambda self, task: 7)", "task_type of own_games:SPEC returned 7 for own/train/00000000"),
])
def test_an_environment_of_another_form_is_refused(code: str, said: str, refused):
    assert said in refused(code)


@pytest.mark.parametrize(("code", "said"), [
    ("SPEC = replace(SPEC, prompts={'compact': Prompt})", "of own_games:SPEC cannot be made (TypeError: PlainTempla"),
    ("SPEC = replace(SPEC, prompts={'compact': lambda history: Game()})", "of own_games:SPEC has no `render`; see"),
    ("Prompt.render = lambda self, first, turns, now: None", "of own_games:SPEC renders None; return a text from `r"),
    ("Prompt.render = lambda self, now: ''", "failed to render the beginning of own/train/00000000 (TypeError: "),
    ("Prompt.parse = lambda self, text: text", "of own_games:SPEC parses an answer as ''; return an envservice.base"),
    ("Prompt.parse = lambda self, text: text.index('<action>')", "failed to parse '' (ValueError: substring not found"),
    ("Player.act = lambda self, now: 'a'", "answers 'a', which the prompt 'compact' does not take for well formed; "),
    ("Player.act = lambda self, now: None", "the teacher of own_games:SPEC failed on own/train/00000000 (TypeError: "),
    ("SPEC = replace(SPEC, teacher=teacher(disturb=lambda action: action))", "the teacher of own_games:SPEC failed on"),
])
def test_a_prompt_or_a_teacher_that_fails_on_a_game_is_refused(code: str, said: str, refused):
    assert said in refused(code)


@pytest.mark.parametrize(("code", "said"), [
    ("Key.one = lambda self, step: [step.observation]", "own_games:Key returned ['Say a.'], which is no text; make"),
    ("Key.keys = lambda self, group, options: [['a']]", "own_games:Key returned [['a']]; return gagpo.estimators.K"),
    ("Key.one = lambda self, step: {}[step.state]", "own_games:Key failed on own/train/00000000 (KeyError: '' (in <la"),
    ("Key.one = lambda self, step, seen=[]: seen.append(0) or f'{len(seen)}'",
     "own_games:Key returned other keys for the same episodes; keep nothing between calls, and seed what is random"),
])
def test_a_state_key_that_fails_on_a_game_is_refused(code: str, said: str, refused):
    assert f"the state key {said}" in refused(code, "learner.credit.state_key=own_games:Key")


@pytest.mark.parametrize("leaves", ["sys.exit(3)", "sys.exit('no display')"])
def test_a_game_that_leaves_the_process_is_refused(leaves: str, refused):
    """The command would end without a word."""
    assert "game own/train/00000000 is broken (SystemExit: " in refused(
        f"def leave(self, action):\n    {leaves}\nGame.step = leave")


BROWSER = """
import asyncio
import contextlib

def browse(self, action):
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        seen = loop.create_future()
        seen.set_result(("Done.", 1.0, True, False, {}))
        return loop.run_until_complete(seen)

Game.step = browse
"""


def test_a_game_that_runs_an_event_loop_is_refused_unless_its_spec_says_threaded(refused, tmp_path: Path):
    """Each of its steps failed in the run: a server steps games in its own event loop."""
    said = refused(BROWSER)
    assert said.startswith("game own/train/00000000 cannot be played in the event loop of a server (RuntimeError: Cann")
    assert said.endswith("; say threaded=True in its spec, so that the server plays it in a thread")
    (tmp_path / "threaded_games.py").write_text(
        MODULE + BROWSER + "SPEC = replace(text_spec(Game, name='own', max_steps=8, threaded=True), teacher=teacher())")
    preflight.check(load_config("parts/tiny-model", (*RUN, "env.name=threaded_games:SPEC", "env.prompt=full")))


async def test_games_are_checked_where_an_event_loop_runs_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As in a notebook. The error blamed the game: it could not be played in the event loop of a server."""
    (tmp_path / "plain_games.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    preflight.check(load_config("parts/tiny-model", (*RUN, "env.name=plain_games:SPEC")))


def test_a_threaded_game_that_needs_the_main_thread_is_refused(refused):
    said = refused("import signal\n\ndef step(self, action):\n    signal.signal(signal.SIGUSR1, signal.SIG_DFL)\n"
                   "    return 'Done.', 1.0, True, False, {}\n\nGame.step = step\n"
                   "SPEC = replace(SPEC, threaded=lambda env: True)")
    assert "game own/train/00000000 is broken (ValueError: signal only works in main thread" in said


@pytest.mark.parametrize("key", ["env.recycle_hours=4.0", "env.recycle_gb=8.0", "autoscale.env=[1, 4]"])
def test_servers_of_a_live_environment_are_not_ended_on_purpose(key: str, refused):
    """Each such end lost the episodes on the server, and one of three attempts at each."""
    live = "SPEC = replace(text_spec(Game, name='own', max_steps=8, replayable=False), teacher=teacher())"
    assert refused(live, "env.prompt=full", key) == (
        f"{key} ends environment servers, and nobody can rebuild the sessions of own_games:SPEC, which is live; "
        f"leave {key.partition('=')[0]} out")


def test_slow_games_are_not_all_played_before_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("deploy.launch.checks.games.PROBED_S", 0.0)
    (tmp_path / "slow_games.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    told: list[str] = []
    preflight.check(load_config("parts/tiny-model", (*RUN, "env.name=slow_games:SPEC")), report=told.append)
    (line,) = told
    assert re.fullmatch(r"checked 1 of 25 games in \d+ s; the others are not played before the run", line)


@pytest.mark.parametrize(("seconds", "lines"), [(12, 1), (12000, 0)])
def test_steps_that_a_server_cannot_answer_in_time_are_told(
        seconds: int, lines: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """64 games that take turns at steps of 0.1 s wait for 6.4 s, and an answer has a third of 12 s."""
    name = f"long_steps_{seconds}"
    (tmp_path / f"{name}.py").write_text(
        MODULE + "import time\nGame.step = lambda self, action, step=Game.step: time.sleep(0.1) or step(self, action)")
    monkeypatch.syspath_prepend(tmp_path)
    told: list[str] = []
    preflight.check(load_config("parts/tiny-model", (
        *RUN, f"env.name={name}:SPEC", "rollout.slots=64", f"env.call_seconds={seconds}")),
        report=told.append)
    assert len(told) == lines
    assert all(re.fullmatch(
        rf"a step of {name}:SPEC takes [\d.]+ s, so the 64 games of a server wait for [\d.]+ s, and an answer has 4 s; "
        r"give more env\.servers, fewer rollout\.slots or a larger env\.call_seconds, and say threaded=True in its "
        r"spec: without it a server answers nothing else during a step", line) for line in told)


def test_a_game_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """It goes on here once it is named."""
    named = tmp_path / "named"
    (tmp_path / "hanging_games.py").write_text(
        MODULE + f"""
import os
import time


def hang(self, action):
    while not os.path.exists({str(named)!r}):
        time.sleep(0.01)
    return "Done.", 1.0, True, False, {{}}


Game.step = hang
""")
    monkeypatch.syspath_prepend(tmp_path)
    preflight.check(load_config("parts/tiny-model", (*RUN, "env.name=hanging_games:SPEC", "env.call_seconds=0.5")),
                    report=lambda line: named.exists() or named.write_text(line))
    assert named.read_text() == (
        "game own/train/00000000 has not ended after 0.5 s (env.call_seconds), and the check waits; Ctrl-C ends it")


def test_the_parts_of_a_game_that_works_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The environment is opened once: one may take a minute, as it reads its data."""
    (tmp_path / "right_games.py").write_text(
        MODULE + "SPEC, times = opens(tasks=lambda self, split: tuple(TextEnvironment.tasks(self, split))), []\n"
        "SPEC = replace(SPEC, open=lambda env, once=SPEC.open: (times.append(env), once(env))[1])\n")
    monkeypatch.syspath_prepend(tmp_path)
    task_sets = preflight.check(load_config("parts/tiny-model", (
        *RUN, "env.name=right_games:SPEC", "learner.credit.state_key=right_games:Key")))
    assert len(task_sets.train) == 1000
    assert len(sys.modules["right_games"].times) == 1


@pytest.mark.parametrize(("overrides", "lines"), [
    (["learner.task_sampling=contrast"], ["warning: learner.task_sampling=contrast does nothing in typed_games:SPEC, "
                                          "whose training games are all of the type 'own'"]),
    (["learner.task_sampling=contrast", "env.name=typed_games:TWO"], []),
    ([], [])])
def test_sampling_by_type_in_games_of_one_type_is_reported(
        overrides: list[str], lines: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "typed_games.py").write_text(MODULE + "TWO = opens(task_type=lambda self, task: task[-1:])")
    monkeypatch.syspath_prepend(tmp_path)
    told: list[str] = []
    run = load_config("parts/tiny-model", (*RUN, "env.name=typed_games:SPEC", *overrides))
    preflight.check(run, report=told.append)
    assert told == lines
