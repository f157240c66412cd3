"""Code of the user's."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from envservice.registry import find_spec
from learner.credit.registry import estimator
from learner.credit.state_keys import find_key
from services.errors import UserError
from services.process.own_code import import_object

ENDED = "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)\n"


def test_sigterm_while_a_module_is_imported_is_no_mistake_in_it(tmp_path: Path):
    """A supervisor takes the status 2 of a mistake for a reason not to start the command again."""
    (tmp_path / "ended.py").write_text(ENDED)
    command = [sys.executable, "-m", "gagpo", "play", "--tasks", "train", "--env", "ended:SPEC"]
    done = subprocess.run(command, cwd=tmp_path, check=False,
                          capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")


@pytest.mark.parametrize(("file", "target", "problem"), [
    ("code.py", "code:Above", r"^code has no Above in \S+/code\.py; rename your code\.py: Python finds another code "),
    ("time.py", "time:Above", r"^time has no Above; rename your time\.py: Python finds another time "),
    ("json/__init__.py", "json:Above", r"^json has no Above in \S+/json/__init__\.py; rename your folder json: "),
    ("json/above.py", "json.above:Above", r"^the estimator json\.above:Above cannot be imported .*; rename your fold"),
    ("level.py", "level.py:Above", r"^the estimator level\.py:Above cannot be imported .*; write level:Above$"),
    ("level.py", "level:Above", r"^level has no Above in \S+/level\.py; set learner\.credit\.estimator to module:"),
])
def test_a_module_that_lies_in_the_folder_and_is_not_found_is_told_why(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, target: str, problem: str):
    """The user saw the class in a file of this name, and was told that the module has none."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("class Below: ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(UserError, match=problem):
        import_object(target, kind="estimator", key="learner.credit.estimator")


def test_a_missing_package_without_a_name_is_told_by_the_modules_own_words(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The fix was "install " and nothing else."""
    (tmp_path / "needing.py").write_text("raise ModuleNotFoundError('needs the extra')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(UserError, match=r"cannot be imported \(needs the extra\); fix needing$"):
        import_object("needing:Above", kind="estimator", key="learner.credit.estimator")


@pytest.mark.parametrize(("target", "fix"), [
    ("mine.Above", "write mine:Above"), ("./mine.py:Above", "write mine:Above"),
    ("pkg/est.py:A", "write pkg.est:A"), ("pkg/est:A", "write pkg.est:A"),
    ("my-est:Above", "name files and folders with _ in place of -, and write my_est:Above"),
    ("my-pkg/est.py:A", "name files and folders with _ in place of -, and write my_pkg.est:A"),
    ("mine", "set KEY to module:attribute of your own"), ("mine.py", "set KEY to module:attribute of your own"),
    ("mine:", "set KEY to module:attribute of your own"), ("../mine.py:A", "set KEY to module:attribute of your own")])
def test_a_name_of_another_form_is_told_as_it_should_be_written(target: str, fix: str):
    with pytest.raises(UserError) as error:
        import_object(target, kind="agent", key="KEY")
    assert str(error.value) == f"there is no agent {target!r}; {fix}"


@pytest.mark.parametrize(("find", "what"), [
    (estimator, "credit estimator"), (find_key, "state key"), (find_spec, "environment")])
def test_a_dot_in_place_of_the_colon_is_told_wherever_code_of_ones_own_is_named(
        find: Callable[[str], object], what: str):
    with pytest.raises(UserError, match=rf"^there is no {what} 'mine\.Above'; write mine:Above$"):
        find("mine.Above")
