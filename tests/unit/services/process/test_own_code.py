"""Code of the user's."""

import signal
import subprocess
import sys
from pathlib import Path

ENDED = "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)\n"


def test_sigterm_while_a_module_is_imported_is_no_mistake_in_it(tmp_path: Path):
    """A supervisor takes the status 2 of a mistake for a reason not to start the command again."""
    (tmp_path / "ended.py").write_text(ENDED)
    command = [sys.executable, "-m", "gagpo", "tasks", "train", "--env", "ended:SPEC"]
    done = subprocess.run(command, cwd=tmp_path, check=False,
                          capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")
