"""Looking at a run imports no code that its config names: each text key of the config with each command that looks."""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from explorer_run import make_run
from fastapi.testclient import TestClient
from pydantic import ValidationError

import gagpo
from deploy import cli
from deploy.explorer.app import create_app
from deploy.explorer.runs import ExploredRun
from deploy.runs.export import export
from deploy.runs.folder import RunFolder
from learner.cold_start.scratch_model import train_tokenizer
from services.config.keys import config_keys, takes_text
from services.config.tree import Config
from services.errors import UserError
from services.process.own_code import judging_imports, refuse

CODE = "shared_run_code:Thing"
MODULE = 'from pathlib import Path\nPath(__file__).with_name("ran").touch()\nclass Thing: pass\n'
KINDS = {"env.name", "agent.name", "learner.credit.estimator", "learner.credit.state_key"}
"""The keys that name code today. The keys that the test walks come from the config tree."""
LOOKS: dict[str, Callable[[Path], list[str]] | None] = {
    "status": lambda run: [str(run)],
    "scale": lambda run: [str(run)],
    "audit": lambda run: [str(run)],
    "explore": lambda run: [str(run)],
    "report": lambda run: [str(run), "--out", str(run / "reported")],
    "export": lambda run: [str(run), str(run / "exported")],
    "monitor": None,  # starts Prometheus over a folder, and reads no run
    "new-env": None,  # writes files, and reads no run
}
"""Command -> its arguments for a run. A command that is neither here nor among RUNS_OWN_CODE fails the test."""


def config_with(*keys: str) -> dict[str, Any]:
    """Returns a config that names the module at these keys."""
    tree: dict[str, Any] = {"name": "evil", "steps": 3}
    for key in keys:
        *sections, leaf = key.split(".")
        at = tree
        for section in sections:
            at = at.setdefault(section, {})
        at[leaf] = CODE
    return tree


def keys_that_take_a_name_of_code() -> list[str]:
    keys: list[str] = []
    for key in filter(takes_text, config_keys()):
        try:
            Config.model_validate(config_with(key))
        except ValidationError:
            continue
        keys.append(key)
    return keys


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that somebody else made, with a module in it and a model."""
    folder = make_run(tmp_path_factory.mktemp("shared") / "evil")
    (folder / "shared_run_code.py").write_text(MODULE)
    (folder / "run.json").write_text('{"format": 1, "run": "evil-1", "games": "9 games of alfworld (digest)"}')
    train_tokenizer(["you are in a room"]).save_pretrained(folder / "model")
    (folder / "model/config.json").write_text("{}")
    return folder


@pytest.fixture
def inside(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user stands in that folder, as Python's search for modules then does."""
    monkeypatch.chdir(shared)
    monkeypatch.setattr(sys, "path", [*sys.path, str(shared)])
    yield shared
    sys.modules.pop("shared_run_code", None)
    (shared / "ran").unlink(missing_ok=True)


def looked(runs: list[ExploredRun], **_: object) -> None:
    """Asks the explorer for its pages, in place of serving them."""
    client = TestClient(create_app(runs, None), base_url="http://localhost:8400")
    name, group = runs[0].name, "step-00000001/train/00000100"
    for page in ("/", f"/{name}/groups", f"/{name}/group/{group}", f"/{name}/credit/{group}",
                 f"/{name}/episode/step-00000001/0/train/00000100"):
        reply = client.get(page)
        assert reply.status_code == 200 or "/credit/" in page, reply.text


def test_every_command_looks_or_runs_code_by_intent():
    choices: set[str] = {name for add in cli.build_parser()._subparsers._group_actions for name in add.choices or ()}  # pyright: ignore
    assert choices == {*LOOKS, *cli.RUNS_OWN_CODE}
    assert not LOOKS.keys() & cli.RUNS_OWN_CODE
    assert set(keys_that_take_a_name_of_code()) >= KINDS


# A key that names code could hide another one, so each is alone. All others are together, to save time.
@pytest.mark.parametrize("keys", [*({key} for key in sorted(KINDS)), {*keys_that_take_a_name_of_code()} - KINDS],
                         ids=lambda keys: "others" if len(keys) > 1 else min(keys))
def test_no_key_makes_looking_run_code(inside: Path, keys: set[str], tmp_path: Path,
                                       monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("deploy.explorer.app.serve", looked)
    (inside / "config.yaml").write_text(yaml.safe_dump(config_with(*keys)))
    for command, arguments in LOOKS.items():
        if arguments is not None:
            cli.main([command, *arguments(inside)])
            assert not (inside / "ran").exists(), command
    with judging_imports(refuse), suppress(UserError, FileNotFoundError):  # the command needs a checkpoint
        export(RunFolder(inside), 3, inside / "model", tmp_path / "exported")

    run = gagpo.open_run(inside)
    assert run.config.name == "evil"
    assert run.episodes().num_rows > 0
    assert not (inside / "ran").exists()


@pytest.mark.parametrize("key", sorted(KINDS - {"agent.name"}))
def test_the_option_imports_it_and_says_what(inside: Path, key: str, capsys: pytest.CaptureFixture[str],
                                             monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("deploy.explorer.app.serve", looked)
    (inside / "config.yaml").write_text(yaml.safe_dump(config_with(key)))
    command = "report" if key == "env.name" else "explore"
    arguments = [command, *(LOOKS[command] or list)(inside)]

    cli.main(arguments)
    assert not (inside / "ran").exists()
    cli.main([*arguments, "--own-code"])

    assert (inside / "ran").exists()
    assert f"imports {key}={CODE} from {inside}/shared_run_code.py\n" in capsys.readouterr().err


def test_a_model_whose_prompt_is_code_is_not_exported_without_the_option(inside: Path, tmp_path: Path):
    (inside / "config.yaml").write_text(yaml.safe_dump(config_with("env.name")))
    with judging_imports(refuse), pytest.raises(UserError, match="add --own-code to import it"):
        export(RunFolder(inside), 3, inside / "model", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_pages_say_what_they_leave_out(inside: Path, capsys: pytest.CaptureFixture[str],
                                       monkeypatch: pytest.MonkeyPatch):
    pages: list[str] = []

    def first_page(runs: list[ExploredRun], **_: object) -> None:
        pages.append(TestClient(create_app(runs, None), base_url="http://localhost:8400").get("/").text)

    monkeypatch.setattr("deploy.explorer.app.serve", first_page)
    (inside / "config.yaml").write_text(yaml.safe_dump(config_with("learner.credit.estimator")))
    assert cli.main(["explore", str(inside)]) == 0
    assert cli.main(["report", str(inside), "--out", str(inside / "reported")]) == 0
    for page in (pages[0], (inside / "reported/report.html").read_text()):
        assert f"learner.credit.estimator={CODE} is code that does not come with gagpo" in unescape(page)
    (inside / "config.yaml").write_text(yaml.safe_dump(config_with("env.name")))
    assert cli.main(["report", str(inside), "--out", str(inside / "reported")]) == 0
    assert "How far they came is not shown: env.name" in unescape((inside / "reported/report.html").read_text())


@pytest.mark.parametrize("command", [
    ["eval", "{}"], ["train", "--resume={}"], ["train", "--resume", "{}"],
    ["play", "shared/train/0", "--agent={}"], ["play", "shared/train/0", "--agent", "{}"]], ids=" ".join)
def test_playing_and_resuming_say_what_they_import(inside: Path, capsys: pytest.CaptureFixture[str],
                                                   command: list[str]):
    (inside / "config.yaml").write_text(yaml.safe_dump(config_with("env.name")))
    assert cli.main([word.format(inside) for word in command]) == 2  # it is no EnvironmentSpec
    assert f"imports env.name={CODE} from {inside}/shared_run_code.py\n" in capsys.readouterr().err
