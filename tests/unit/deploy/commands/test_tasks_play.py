"""`gagpo play`, as programs see it: on generated games, through the real command."""

import json
import os
import subprocess
import sys

import pytest

from envservice.alfworld.generator import generate
from envservice.alfworld.textworld_engine import require_textworld
from services.errors import UserError

TASK = "alfworld-gen/valid/pick-0000"
WALK = generate("valid", 0)["walkthrough"]


PLAY = """from envservice.base import Outcome
from envservice.adapters.dataset import dataset_spec

class Play:
    def __init__(self, row): pass
    def reset(self): return {reset}
    def step(self, action): return 'no'

SPEC = dataset_spec(Play, name='own')
"""
"""A session of the user's own that returns no Outcome."""


def gagpo(*args, stdin="", **env):
    clean = {key: value for key, value in os.environ.items() if key != "ALFWORLD_DATA"}
    return subprocess.run(
        [sys.executable, "-c", "from deploy.cli import main; raise SystemExit(main())", *args],
        input=stdin if isinstance(stdin, bytes) else stdin.encode(), capture_output=True, env=clean | env, timeout=60,
        check=False,
    )  # fmt: skip


def records(done):
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


def test_tasks_prints_ids_on_stdout_and_number_and_digest_on_stderr():
    plain, as_json = gagpo("play", "--tasks", "valid"), gagpo("play", "--tasks", "valid", "--json")
    ids = plain.stdout.decode().splitlines()
    assert ids == sorted(ids)
    assert ids[0].startswith("alfworld-gen/valid/")
    (answer,) = records(as_json)
    assert answer["tasks"] == ids
    assert set(answer) == {"split", "digest", "tasks"}
    assert plain.stderr.decode() == f"{len(ids)} tasks of alfworld-gen, digest {answer['digest']}\n"


def test_play_json_prints_the_reset_first_and_answers_each_line():
    first, *rest = records(gagpo("play", TASK, "--json", stdin="\n".join(["dance", *WALK, "look"])))
    assert set(first) == {"observation", "admissible_actions", "reward", "done", "won", "step"}
    assert first["observation"].startswith("-= Welcome to TextWorld, ALFRED! =-")
    assert "help" in first["admissible_actions"]
    assert (first["step"], first["reward"], first["done"], first["won"]) == (0, 0.0, False, False)
    assert rest[0]["observation"] == "Nothing happens."
    assert [each["step"] for each in rest[:-1]] == list(range(1, len(WALK) + 2))
    assert (rest[-2]["reward"], rest[-2]["done"], rest[-2]["won"]) == (1.0, True, True)
    assert set(rest[-1]) == {"error", "step"}


def test_play_json_takes_any_bytes_as_an_action_and_an_empty_line_too():
    answers = records(gagpo("play", TASK, "--json", stdin=b"\xff\xfe\n\nlook\n"))
    assert [each["observation"] == "Nothing happens." for each in answers] == [False, True, True, False]


def test_max_steps_ends_an_episode_that_is_not_won():
    *_, last, error = records(gagpo("play", TASK, "--json", "--max-steps", "2", stdin="look\nlook\nlook\n"))
    assert (last["done"], last["won"], last["step"]) == (True, False, 2)
    assert "error" in error


def test_play_in_a_terminal_ends_with_the_result():
    done = gagpo("play", TASK, stdin="\n".join(WALK))
    assert done.returncode == 0
    assert done.stdout.decode().endswith(f"won after {len(WALK)} steps\n")


def test_both_engines_play_the_same():
    try:
        require_textworld()
    except UserError as error:
        pytest.skip(str(error))
    walk = "\n".join(WALK)
    shipped = gagpo("play", TASK, "--json", "env.alfworld.engine=textworld", stdin=walk)
    assert records(shipped) == records(gagpo("play", TASK, "--json", stdin=walk))


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["play", "--tasks", "nowhere"],
         "error: generated games have no split 'nowhere'; choose one of train, valid, heldout"),
        (["play", "nothing"], "error: there is no task 'nothing' in alfworld; see `gagpo play --tasks SPLIT`; "
         "for a task of another environment, give --env or --config"),
        (["play", "alfworld-gen/valid/pick-9999"], "error: there is no task 'alfworld-gen/valid/pick-9999'"),
        (["play", "alfworld/train/a/b"], "error: alfworld/train/a/b is an official game and ALFWORLD_DATA is not set"),
        (["play", TASK, "--max-steps", "0"], "error: argument --max-steps: it must be at least 1, not 0"),
    ],
)
def test_a_mistake_is_one_line(args, line):
    done = gagpo(*args)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.decode().startswith(line)
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("options", [(), ("--prompts", "2")], ids=["play", "prompts"])
@pytest.mark.parametrize(("code", "line"), [
    ("from envservice.adapters.openenv import openenv_spec\nSPEC = openenv_spec('http://127.0.0.1:9', name='own')\n",
     "error: http://127.0.0.1:9 failed to reset: ConnectionRefusedError [Errno 111] Connection refused; start the "
     "OpenEnv server of own, or correct its URL\n"),
    ("from envservice.adapters.gymnasium import text_spec\nclass Game:\n    def reset(self, *, seed): return 'hi'\n"
     "SPEC = text_spec(Game, name='own')\n",
     "error: the game own/train/00000000 failed (its reset returned str 'hi', and not (text, info)); fix the "
     "environment, or what it needs\n"),
    (PLAY.format(reset="{}['missing']"), "error: the game own/train/00000000 failed (KeyError: 'missing' (in reset, "
     "own.py:6)); fix the environment, or what it needs\n"),
    (PLAY.format(reset="__import__('sys').exit(3)"), "error: the game own/train/00000000 failed (SystemExit: 3 (in "
     "reset, own.py:6)); fix the environment, or what it needs\n"),
    ("from envservice.adapters.gymnasium import text_spec\nclass Game:\n    def __init__(self): {}['missing']\n"
     "    def reset(self, *, seed): return 'hi', {}\nSPEC = text_spec(Game, name='own')\n",
     "error: the game own/train/00000000 failed (KeyError: 'missing' (in __init__, own.py:3)); fix the environment, or "
     "what it needs\n"),
    (PLAY.format(reset="None"), "error: the game own/train/00000000 failed (its reset returned NoneType None, and not "
     "an Outcome); fix the environment, or what it needs\n"),
    (PLAY.format(reset="Outcome(observation='hi', admissible_actions=[])"), "error: the game own/train/00000000 failed "
     "(its step returned str 'no', and not an Outcome); fix the environment, or what it needs\n"),
], ids=["no server", "another form", "a reset that fails", "one that leaves", "a game that is not made",
        "a reset without an outcome", "a step without one"])
def test_an_environment_of_ones_own_that_cannot_be_played_is_one_line(options, code, line, tmp_path):
    (tmp_path / "own.py").write_text(code)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"split": "{split}"}}\n' for split in ("train", "validation", "test")))
    done = gagpo("play", "own/train/00000000", *options, "--env", "own:SPEC", f"env.data={rows}", stdin="go\n",
                 PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert done.stderr.decode() == line
    assert done.returncode == 2


def test_a_data_folder_without_games_is_one_line(tmp_path):
    done = gagpo("play", "--tasks", "train", ALFWORLD_DATA=str(tmp_path))
    assert done.returncode == 2
    assert b"there are no ALFWorld games in" in done.stderr
