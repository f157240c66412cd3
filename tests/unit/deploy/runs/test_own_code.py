"""A change of the code that an estimator or a state key of the user's own is made of is told when its run goes on."""

import json
import re
import sys
from pathlib import Path

import pytest

from deploy.launch.planning.warnings import warnings
from deploy.runs.configs import load_config
from deploy.runs.folder import open_run
from services.config.tree import Config

PAGE = (Path(__file__).parents[4] / "docs/tasks/own-estimator.md").read_text()


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A config with the estimator and the state key of the page, in a module of the current folder."""
    (tmp_path / "changing.py").write_text(
        "\n\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "changing", raising=False)
    return load_config("alfworld-tiny", [f"runs_dir={tmp_path}/runs", "name=mine", "steps=3",
                                         "learner.credit.estimator=changing:Above",
                                         "learner.credit.state_key=changing:Length"])


def told(config: Config) -> list[str]:
    return [line for line in warnings(config) if "changed" in line]


def test_a_changed_file_is_told_once_when_the_run_goes_on(config: Config):
    assert told(config) == []
    open_run(config, games="g", resume=False)
    assert told(config) == []
    code = Path("changing.py")
    code.write_text(code.read_text().replace("x - options.level", "x + options.level"))
    open_run(config, games="g", resume=True)
    line, = told(config)
    assert line.startswith("changing.py has changed since this run started")


def test_a_run_of_a_version_that_recorded_no_code_is_not_warned_of(config: Config):
    folder, _ = open_run(config, games="g", resume=False)
    identity = json.loads(folder.identity_file.read_text())
    assert set(identity.pop("code")) == {"changing"}
    folder.identity_file.write_text(json.dumps(identity))
    assert told(config) == []


def test_a_run_without_own_code_records_none(config: Config):
    shipped = load_config("alfworld-tiny", [f"runs_dir={config.runs_dir}", "name=shipped"])
    folder, _ = open_run(shipped, games="g", resume=False)
    assert json.loads(folder.identity_file.read_text())["code"] == {}
