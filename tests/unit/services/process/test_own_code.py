"""Code of the user's."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.errors import UserError
from services.process.own_code import imported

ENDED = "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)\n"


def test_sigterm_while_a_module_is_imported_is_no_mistake_in_it(tmp_path: Path):
    """A supervisor takes the status 2 of a mistake for a reason not to start the command again."""
    (tmp_path / "ended.py").write_text(ENDED)
    command = [sys.executable, "-m", "gagpo", "tasks", "train", "--env", "ended:SPEC"]
    done = subprocess.run(command, cwd=tmp_path, check=False,
                          capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")


@pytest.mark.parametrize(("file", "target", "said"), [
    ("code.py", "code:Above", r"^code has no Above in \S+/code\.py; rename your code\.py: Python finds another code "),
    ("time.py", "time:Above", r"^time has no Above; rename your time\.py: Python finds another time "),
    ("json/__init__.py", "json:Above", r"^json has no Above in \S+/json/__init__\.py; rename your folder json: "),
    ("json/above.py", "json.above:Above", r"^the estimator json\.above:Above cannot be imported .*; rename your fold"),
    ("level.py", "level:Above", r"^level has no Above in \S+/level\.py; set learner\.credit\.estimator to module:"),
])
def test_a_module_that_another_one_hides_is_told_to_be_renamed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, target: str, said: str):
    """The user saw the class in a file of this name, and was told that the module has none."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("class Below: ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(UserError, match=said):
        imported(target, kind="estimator", key="learner.credit.estimator")
