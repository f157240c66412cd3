"""Commands of environments run where only the base packages are installed, as in the images of environment servers."""

import re
import subprocess
import sys

import pytest

CODE = """
import sys
sys.modules.update(dict.fromkeys(("numpy", "ray", "torch", "transformers", "vllm"), None))
from deploy.cli import main
sys.exit(main({argv!r}))
"""


@pytest.mark.parametrize("argv", [
    ["tasks", "train", "env.alfworld.task_types=[pick]"], ["tasks", "train", "--config", "alfworld-tiny"],
    ["serve-env", "--port", "0", "env.name=nothing:SPEC"]])
def test_settings_of_environments_need_no_other_package(argv: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    done = subprocess.run([sys.executable, "-c", CODE.format(argv=argv)], capture_output=True, text=True, timeout=120,
                          check=False)
    assert done.returncode == (0 if argv[0] == "tasks" else 2), done.stderr
    assert not re.search("Traceback|numpy", done.stderr)
