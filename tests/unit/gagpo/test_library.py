"""The public names of the library, and their functions."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import gagpo
from deploy.runs.configs import load_config
from deploy.runs.results import RunResults
from gagpo.functions import _words
from gagpo.installation import PACKAGES
from services.process.packages import EXTRAS, OURS

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy/explorer"))

from explorer_run import make_run

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PUBLIC = {"Credit", "Environment", "EnvironmentSpec", "GagpoError", "RunResults", "UserError", "credit", "evaluate",
          "dataset_spec", "open_run", "text_spec", "train"}
"""Others write programs with these names: one that goes away or changes its meaning is a new major version."""


MODULES = {
    "agents": {"AgentProgram", "Tool", "ToolCall", "read_call", "tool"},
    "environments": {
        "EnvClient", "EnvFault", "EnvSection", "Environment", "EnvironmentSpec", "McpCall", "McpEpisode", "Outcome",
        "ParsedAction", "PromptTemplate", "Replay", "Session", "SftSection", "Teacher", "Turn", "Unavailable",
        "UserError", "answer", "dataset_spec", "find_spec", "make_template", "mcp_spec", "openenv_spec",
        "openenv_tools_spec", "plays_twice", "read_answer", "read_lowered", "seed_for", "text_spec", "with_data"},
    "estimators": {"Credit", "CreditOptions", "Gagpo", "Keys", "WithinGroup", "discounted", "penalized", "state_key",
                   "states"},
}
"""Module of gagpo -> the names that environments, agents and estimators of users import from it."""


def python(code: str, folder: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60,
                          check=False, env={"PYTHONPATH": ":".join(map(str, paths))})


def test_the_public_names_are_those_that_were_promised():
    assert set(gagpo.__all__) == set(dir(gagpo)) == PUBLIC
    for name in PUBLIC:
        assert getattr(gagpo, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        gagpo.tarin  # noqa: B018
    assert Path(gagpo.__file__).with_name("py.typed").exists()


@pytest.mark.parametrize("module", MODULES)
def test_modules_for_users_own_code_have_the_promised_names_and_load_nothing_heavy(module: str, tmp_path: Path):
    public = importlib.import_module(f"gagpo.{module}")
    assert set(public.__all__) == MODULES[module]
    assert [name for name in public.__all__ if not hasattr(public, name)] == []
    heavy = "[m for m in ('torch', 'ray', 'pyarrow', 'vllm', 'redis', 'transformers') if m in sys.modules]"
    done = python(f"import sys, gagpo.{module}; print({heavy})", tmp_path, ROOT)
    assert done.stdout == "[]\n", done.stderr


def test_pages_examples_and_the_template_import_nothing_but_gagpo():
    """Code that users copy keeps working while the packages behind gagpo move."""
    files = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/tasks").glob("*.md"), *(ROOT / "examples").rglob("*.py"),
             *(ROOT / "deploy/commands/new_env_template").iterdir()]
    inner = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(OURS)})\b.*", re.MULTILINE)
    assert {str(file.relative_to(ROOT)): lines for file in files
            if (lines := inner.findall(file.read_text())) and file.name != "reproduction.md"} == {}


def test_it_is_light_until_it_is_used(tmp_path: Path):
    heavy = "[m for m in ('torch', 'ray', 'pyarrow', 'numpy', 'pydantic', 'transformers') if m in sys.modules]"
    done = python(f"import sys, gagpo; print({heavy})", tmp_path, ROOT)
    assert done.stdout == "[]\n", done.stderr


def test_the_credit_of_one_group_and_of_several():
    one = {"episodes": [{"steps": [{"state": "S", "reward": 10}]}, {"steps": [{"state": "S", "reward": 0}]}]}
    flat = {"episodes": [{"steps": [{"state": "S", "reward": 0}]}] * 2}
    assert gagpo.credit(one, normalize="none").advantages == [[5.0], [-5.0]]
    first, second = gagpo.credit(iter([one, flat]), normalize="batch")
    assert first.advantages[0] == pytest.approx([5 / (50 / 3) ** 0.5], abs=1e-5)
    assert second.advantages == [[0.0], [0.0]]
    assert gagpo.credit([], normalize="batch") == []
    for no_groups in (None, "text", b"text"):
        with pytest.raises(gagpo.UserError, match=f"^groups cannot be {no_groups!r}; give a group, or a list of "):
            gagpo.credit(no_groups)
    for bad, options, match in [([one, {"episodes": []}], {}, "group 2: episodes: "),
                                (one, {"gama": 1}, "^unknown option gama: the estimator gagpo has none of this name; "
                                                   "did you mean gamma[?]$"),
                                (one, {"gamma": 2}, "option gamma cannot be 2")]:
        with pytest.raises(gagpo.UserError, match=match):
            gagpo.credit(bad, **options)


def test_a_run_is_read_as_arrow_tables(tmp_path: Path):
    run = gagpo.open_run(make_run(tmp_path / "mine", steps=3))
    assert isinstance(run, RunResults)
    assert run.config.name == "mine"
    assert run.metrics()["step"].to_pylist() == [1, 2, 3]
    evaluations = run.evaluations()
    assert evaluations.num_rows == 2
    assert evaluations["success_by_task"].type.key_type == "string"
    every, second = run.episodes(columns=["group", "delta"]), run.episodes(step=2)
    assert every.column_names == ["group", "delta"]
    assert 0 < second.num_rows < every.num_rows
    assert set(second["outcome"].to_pylist()) == {"trained"}
    assert set(run.episodes(outcome="evaluated")["outcome"].to_pylist()) == {"evaluated"}
    assert run.episodes(step=2, outcome="dropped").num_rows == 0
    with pytest.raises(gagpo.UserError, match=r"no archive of learner step 99; its archive has steps \d to 3$"):
        run.episodes(step=99)
    with pytest.raises(gagpo.UserError, match=r"step-00000001\.parquet has no column 'delt'; did you mean 'delta'\?"):
        run.episodes(columns=["group", "delt"])
    (run.path / "episodes" / "step-00000002.parquet").write_bytes(b"torn")
    with pytest.raises(gagpo.UserError, match=r"step-00000002\.parquet cannot be read"):
        run.episodes()
    with pytest.raises(gagpo.UserError, match="is not the folder of a run"):
        gagpo.open_run(tmp_path / "other")


def test_a_mistake_is_said_before_anything_starts(tmp_path: Path):
    with pytest.raises(gagpo.UserError, match="there is no config file"):
        gagpo.train(tmp_path / "none.yaml")
    with pytest.raises(gagpo.UserError, match=r"learner\.lrr"):
        gagpo.train("alfworld-tiny", {"learner.lrr": 1})
    with pytest.raises(gagpo.UserError, match="there is no model at"):
        gagpo.train("alfworld-tiny", {"model.path": tmp_path / "none", "runs_dir": tmp_path / "runs"})
    with pytest.raises(gagpo.UserError, match="holds no model"):
        gagpo.evaluate(tmp_path)
    with pytest.raises(gagpo.UserError, match=f"there is no folder {tmp_path}/none; give a Hugging Face folder"):
        gagpo.evaluate(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


def test_the_guard_knows_our_packages():
    assert PACKAGES == OURS


NEXT_TO_A_PROJECT = """
import pickle
import gagpo
import services.errors
from gagpo.environments import EnvClient, find_spec
from gagpo.integrations.steps import StepUid

group = {"episodes": [{"steps": [{"state": "S", "reward": 10}]}, {"steps": [{"state": "S", "reward": 0}]}]}
credit = pickle.loads(pickle.dumps(gagpo.credit(group, normalize="none")))
assert credit.advantages == [[5.0], [-5.0]]
try:
    gagpo.credit(group, gama=1)
except gagpo.UserError as error:
    assert "did you mean gamma?" in str(error)
assert find_spec("alfworld").max_steps == 50
assert services.errors.OURS == "the project's"
import services.controller.mine
try:
    gagpo.train("alfworld-tiny")
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("package", [True, False])
def test_credit_and_environments_work_next_to_a_project_with_a_folder_of_the_same_name(tmp_path: Path, package: bool):
    """An ImportError asked to rename the folder. The project's modules may have the names of ours, too."""
    (tmp_path / "services/controller").mkdir(parents=True)
    (tmp_path / "services/errors.py").write_text('OURS = "the project\'s"')
    (tmp_path / "services/controller/mine.py").touch()
    if package:
        (tmp_path / "services/__init__.py").touch()
    done = python(NEXT_TO_A_PROJECT, tmp_path, ROOT)
    assert done.returncode == 0, done.stderr
    refusal = f"{tmp_path}/services and gagpo's package services have the same name; rename it"
    assert done.stdout.startswith(refusal)
    command = python("from gagpo.__main__ import main; raise SystemExit(main())", tmp_path, ROOT)
    assert (command.returncode, command.stderr.count("\n")) == (2, 1)
    assert command.stderr.startswith(f"error: {refusal}")


WITHOUT_EXTRAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def without_extras(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs code where no package of an extra can be imported, as after `pip install gagpo`."""
    return python(WITHOUT_EXTRAS.format(missing=set(EXTRAS)) + code, folder, ROOT)


def test_credit_and_what_users_write_need_no_extra(tmp_path: Path):
    (tmp_path / "groups.jsonl").write_text('{"episodes": [{"steps": [{"state": "S", "reward": 1}]}]}')
    done = without_extras(
        "import gagpo, gagpo.agents, gagpo.environments, gagpo.estimators, gagpo.integrations.steps\n"
        "import gagpo.integrations.skyrl\n"
        "print(gagpo.credit({'episodes': [{'steps': [{'state': 'S', 'reward': 1}]}] * 2}).advantages)\n"
        "from gagpo.__main__ import main\n"
        "sys.argv = ['gagpo', 'credit', 'groups.jsonl', '--table']; sys.exit(main())", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[[0.0], [0.0]]\n")
    assert "advantage" in done.stdout


@pytest.mark.parametrize(("command", "package"), [
    ("train --dry-run", "redis"), ("serve-env", "fastapi"), ("explore run", "uvicorn"), ("doctor", "rich")])
def test_a_command_names_the_extra_that_it_needs(tmp_path: Path, command: str, package: str):
    """It was a traceback."""
    done = without_extras(f"from gagpo.__main__ import main\nsys.argv = ['gagpo', *{command!r}.split()]\n"
                          "sys.exit(main())", tmp_path)
    assert (done.returncode, done.stderr) == (
        2, f"error: this needs the package {package}, which is not installed; pip install 'gagpo[train]'\n")


def test_a_function_names_the_extra_that_it_needs(tmp_path: Path):
    make_run(tmp_path / "run")
    for call in ("train('alfworld-tiny')", "open_run('run')"):
        done = without_extras(f"import gagpo\ntry: gagpo.{call}\nexcept gagpo.UserError as error: print(error)",
                              tmp_path)
        assert done.stdout.endswith("which is not installed; pip install 'gagpo[train]'\n"), done.stderr


def test_each_package_that_is_imported_belongs_to_the_base_or_to_an_extra():
    names = {"yaml" if name == "PyYAML" else name for text in PROJECT["dependencies"]
             for name in re.findall(r"^[\w-]+", text)}
    others = {"pydantic_core", "alfworld", "textworld", "spacy", "verl", "skyrl", "transfer_queue", "setproctitle"}
    imported = {name.partition(".")[0] for top in (*OURS, "gagpo") for file in (ROOT / top).rglob("*.py")
                for name in imports(file)}
    known = {*names, *EXTRAS, *others, *OURS, "gagpo", *sys.stdlib_module_names}
    assert {name for name in imported if name not in known} == set()
    assert names & EXTRAS.keys() == set()


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def test_ctrl_c_while_python_still_imports_the_command_line_is_one_line(tmp_path: Path):
    """An import is where a signal finds a command in its first second. It was a traceback."""
    code = ("import sys\nclass Finder:\n def find_spec(self, name, *_):\n"
            "  if name == 'deploy.cli': raise KeyboardInterrupt\nsys.meta_path.insert(0, Finder())\n"
            "from gagpo.__main__ import main; raise SystemExit(main())")
    command = python(code, tmp_path, ROOT)
    assert (command.returncode, command.stderr) == (130, "error: interrupted\n")


def test_folders_that_hold_no_modules_disturb_nobody(tmp_path: Path):
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "run.sh").touch()
    done = python("import gagpo; gagpo.UserError", tmp_path, ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_no_text(value: float):
    """A run called NaN was trained."""
    with pytest.raises(gagpo.UserError, match=rf"^name cannot be {value}; give a finite number"):
        _words({"name": value})


class Named:
    """An object with a text of its own."""

    def __str__(self) -> str:
        return "boom"


@pytest.mark.parametrize(("call", "said"), [
    (lambda: gagpo.train("alfworld-tiny", ["name=x"]), r"^overrides cannot be \['name=x'\]; give values by dotted key"),
    (lambda: gagpo.train({"name": "x"}), r"^config cannot be {'name': 'x'}; give a path or a name"),
    (lambda: gagpo.train(None), "^config cannot be None; give a path"),
    (lambda: gagpo.evaluate(7), "^model cannot be 7; give a path"),
    (lambda: gagpo.open_run(None), "^path cannot be None; give a path"),
    (lambda: gagpo.train("alfworld-tiny", {"name": Named()}), "^name cannot be <.*; give a text, a number, a list"),
    (lambda: gagpo.train("alfworld-tiny", {"steps": {1}}), r"^steps cannot be \{1\}; give a text, a number"),
], ids=range(7))
def test_an_argument_of_another_type_is_a_mistake_in_one_line(call: Callable[[], object], said: str):
    """A run with the text of an object as its name was trained."""
    with pytest.raises(gagpo.UserError, match=said):
        call()


def test_a_number_of_numpy_is_a_number_and_a_path_a_text(tmp_path: Path):
    assert _words({"steps": np.int64(3), "runs_dir": tmp_path}) == ["steps=3", f'runs_dir="{tmp_path}"']


def test_a_step_may_be_a_number(tmp_path: Path):
    make_run(tmp_path / "run")
    with pytest.raises(gagpo.UserError, match="checkpoint"):
        gagpo.evaluate(tmp_path / "run", which=7)


@pytest.mark.parametrize("call", [gagpo.train, gagpo.evaluate])
def test_outside_the_main_thread_it_is_refused_before_anything_starts(call: Callable[[str], object]):
    """It failed after Ray's start, with a traceback of Python's signals."""
    with ThreadPoolExecutor() as pool, pytest.raises(gagpo.UserError, match="outside the main thread; call it from"):
        pool.submit(call, "alfworld-tiny").result()


def test_overrides_keep_every_character():
    """YAML does not join the two halves that JSON writes for those beyond U+FFFF."""
    config = load_config("alfworld-tiny", _words({"model.system_prompt": "Be brief \U0001f600"}))
    assert config.model.system_prompt == "Be brief \U0001f600"


def test_an_option_that_does_nothing_is_warned_of():
    steps = {"episodes": [{"steps": [{"state": "hall", "reward": 1.0}]}]}
    with pytest.warns(UserWarning, match="^omega does nothing under the estimator gagpo$"):
        gagpo.credit(steps, omega=5.0)
    with pytest.warns(UserWarning, match="^stay does nothing in this input, in which no step is `unchanged`$"):
        gagpo.credit(steps, stay=True)


def test_mistakes_name_the_group_by_one_way_of_counting():
    whole = {"episodes": [{"steps": [{"state": "hall", "reward": 1.0}]}]}
    known = {"episodes": [{"steps": [{"state": "hall", "reward": 1.0, "action": "north"}]}]}
    with pytest.raises(gagpo.UserError, match=r"^group 2: "):
        gagpo.credit([known, {"episodes": [{"steps": [{"state": "hall"}]}]}])
    with pytest.raises(gagpo.UserError, match=r"^step 0 of episode 0 of group 2 has no action"):
        gagpo.credit([known, whole], estimator="adastep")
