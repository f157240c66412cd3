"""The examples run as their readers would run them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy/explorer"))

from explorer_run import make_run

from envservice.adapters.gymnasium import plays_twice
from envservice.base import Environment, ParsedAction, Turn
from envservice.registry import find_spec
from envservice.text.tool_calls import ToolCall, written_call
from services.config.file import default_config

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_game_is_one_that_runs_can_play(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    environment = find_spec("own_game:SPEC").open(default_config().env)
    task = environment.tasks("train")[0]
    plays_twice(environment, task)
    session = environment.open(task)
    outcome = session.reset()
    for word in list(outcome.admissible_actions):
        outcome = session.step(word)
    assert (outcome.done, outcome.won, outcome.reward) == (True, True, 1.0)
    assert session.reset().observation.startswith("Say in this order")
    assert not session.step("black").won


def test_the_game_with_a_tool_is_won_by_calls_of_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    spec = find_spec("tools_game:SPEC")
    environment = spec.open(default_config(["env.name=tools_game:SPEC"]).env)
    task = next(task for task in environment.tasks("train") if environment.open(task).reset().observation.startswith(
        "The counter is 2."))
    plays_twice(environment, task)
    session = environment.open(task)
    session.reset()
    assert [offered["function"]["name"] for offered in spec.tools()] == ["add"]
    assert session.step("four").observation == "Call add with a number n."
    outcome = session.step(written_call(ToolCall("add", {"n": 4})))
    assert (outcome.observation, outcome.won) == ("6", True)


def first_search(environment: Environment, task: str) -> str:
    session = environment.open(task)
    session.reset()
    return session.step("A").observation


def test_the_search_is_won_by_whoever_looks_into_each_place_once(monkeypatch: pytest.MonkeyPatch):
    """It is lost by whoever repeats a place or tries the door without the key."""
    monkeypatch.syspath_prepend(EXAMPLES)
    environment = find_spec("lost_key:SPEC").open(default_config(["env.name=lost_key:SPEC"]).env)
    tasks = environment.tasks("train")[:20]
    plays_twice(environment, tasks[0])
    lengths = set()
    for task in tasks:
        session = environment.open(task)
        session.reset()
        searches = next(n for n, letter in enumerate("ABC", 1) if "take the key" in session.step(letter).observation)
        assert session.step("D").won
        lengths.add(searches + 1)
    assert lengths == {2, 3, 4}, "the key lies in each of the places"
    session = next(environment.open(task) for task in tasks if "no key" in first_search(environment, task))
    session.reset()
    session.step("A")
    assert (session.step("D").observation, session.step("D").done) == ("You have no key.", False)
    assert session.step("E").observation == "Nothing happens."


def test_the_prompt_of_the_search_shows_what_happened_and_reads_a_letter(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    spec = find_spec("lost_key:SPEC")
    template = spec.prompts["full"](2)
    session = spec.open(default_config(["env.name=lost_key:SPEC"]).env).open("lost-key/train/00000003")
    first = session.reset()
    assert template.render(first, [], first) == f"{first.observation}\nAnswer:"
    now = session.step("A")
    turns = [Turn(observation=first.observation, action="A", admissible=True)]
    assert template.render(first, turns, now) == f"{first.observation}\n{now.observation}\nAnswer:"
    assert template.parse("The answer is B: search") == ParsedAction(action="B", valid=True)
    assert template.parse("Basket") == ParsedAction(action="Basket", valid=False)


def test_the_logged_call_that_earned_it_is_found():
    done = subprocess.run([sys.executable, EXAMPLES / "logged_credit.py"], capture_output=True, text=True, timeout=60,
                          env={"PYTHONPATH": str(EXAMPLES.parent)}, check=True)
    refunded, apologised = (float(done.stdout.splitlines()[line].split()[-1]) for line in (1, 3))
    assert refunded > 0 > apologised, "two answers to the same text"


def run_notebook(name: str, folder: Path, after: str = "", *, after_first: str = "") -> str:
    """Runs the code of a notebook in `folder`, then `after`, and returns what it printed. `after_first` runs after the
    first cell."""
    notebook = json.loads((EXAMPLES / name).read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 4
    assert all(cell["outputs"] == [] for cell in notebook["cells"] if cell["cell_type"] == "code")
    parts = [cells[0], after_first, *cells[1:], after]
    code = f"space = {{}}\nfor cell in {parts!r}:\n    exec(compile(cell, 'cell', 'exec'), space)\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120,
                          env={"PYTHONPATH": str(EXAMPLES.parent), "MPLBACKEND": "Agg"}, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_notebook_of_a_run_runs_from_top_to_bottom(tmp_path: Path):
    make_run(tmp_path / "runs" / "alfworld-tiny")
    folder = tmp_path / "examples"
    folder.mkdir()
    assert "the step that cost the most:" in run_notebook("credit_and_runs.ipynb", folder)


def test_the_notebook_finds_the_step_that_lost_an_episode_and_draws_it(tmp_path: Path):
    drawn = run_notebook("lost_step.ipynb", tmp_path, "print([plt.figure(n).axes[0].get_title() for n in (1, 2)])")
    assert "lost at step 1 of episode 1 of order 17: apologise" in drawn, "the first of two that had paid twice"
    assert "['δ of each step', 'episode 1, step by step']" in drawn


def test_the_notebook_names_no_step_of_an_episode_that_was_won(tmp_path: Path):
    """The winner's step into the state from which the others lost has the lowest δ of all."""
    won = [(["look_up", "refund", "close"], 1), (["refund", "close"], 0), (["refund", "close"], 0)]
    again = f"""
heard = {{"look_up": "a", "refund": "b", "close": "c"}}
HEARD.clear(), HEARD.update(heard)
Path(LOG).write_text("".join(line(*episode) + chr(10) for episode in {won!r}))
"""
    printed = run_notebook("lost_step.ipynb", tmp_path, after_first=again,
                           after='print("winner", min(groups[0]["deltas"][0]) < delta)')
    assert "winner True" in printed, "else this shows nothing"
    assert re.search(r"lost at step \d of episode [12] of order 17", printed), printed
