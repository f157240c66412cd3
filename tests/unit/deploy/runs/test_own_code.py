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
from services.errors import UserError

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


def test_an_option_that_the_new_code_lacks_is_told_with_the_file_that_has_it(config: Config):
    open_run(config, games="g", resume=False)
    code = Path("changing.py")
    code.write_text(code.read_text().replace("level", "threshold"))
    sys.modules.pop("changing")
    now = load_config("alfworld-tiny", [f"runs_dir={config.runs_dir}", "name=mine", "steps=3",
                                        "learner.credit.estimator=changing:Above",
                                        "learner.credit.state_key=changing:Length"])
    with pytest.raises(UserError, match=r"runs/mine/config.yaml: unknown key learner.credit.level: the estimator "):
        open_run(now, games="g", resume=True)


def test_a_run_is_told_from_one_whose_own_code_has_gone(config: Config):
    open_run(config, games="g", resume=False)
    Path("changing.py").unlink()
    sys.modules.pop("changing")
    other = load_config("alfworld-tiny", [f"runs_dir={config.runs_dir}", "name=mine"])
    with pytest.raises(UserError, match=r"belongs to a run with another config: .*learner.credit.estimator is "
                                        r"changing:Above there and gagpo here"):
        open_run(other, games="g", resume=True)


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
