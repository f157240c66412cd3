"""No loaded file can run code, and text is UTF-8 in every file and pipe: each call names the argument for it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAID = {"from_pretrained": "trust_remote_code", "AsyncEngineArgs": "trust_remote_code", "np.load": "allow_pickle"}
"""Calls that could run code, and the argument that prevents it."""
NEVER = {"torch.load", "pickle.load", "pickle.loads", "yaml.unsafe_load", "yaml.full_load", "eval", "exec",
         "state_dict_loader.load", "joblib.load", "pd.read_pickle"}


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Yields the place, the function's name and the call itself, for each call."""
    for folder in ("services", "envservice", "rollout", "learner", "deploy", "lab"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call):
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", ast.unparse(node.func), node


def test_every_loader_says_that_it_runs_no_code_and_nothing_is_unpickled():
    silent, unsafe, loaders, seen = [], [], set(), 0
    for where, name, call in calls():
        if argument := SAID.get(name) or SAID.get(name.rpartition(".")[2]):
            seen += 1
            values = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            if values.get(argument) != "False":
                silent.append(where)
        if name in NEVER:
            unsafe.append(where)
        if name == "yaml.load":
            loaders |= {ast.unparse(keyword.value) for keyword in call.keywords}
    assert seen >= 8
    assert silent == []
    assert unsafe == []
    assert loaders <= {"_Loader"}  # a yaml.SafeLoader of services/config/file.py
FOLDERS = ("services", "envservice", "rollout", "learner", "deploy", "gagpo", "lab")
MODES = frozenset("rwax+tb")


def takes_text(call: ast.Call) -> bool:
    """Returns whether the call reads or writes text and names no encoding."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if "encoding" in given or None in given:
        return False
    if name in ("read_text", "write_text") or {"text", "universal_newlines"} & given.keys():
        return name in ("read_text", "write_text", "run", "Popen", "check_output")
    if name not in ("open", "fdopen", "TextIOWrapper", "TemporaryFile", "NamedTemporaryFile"):
        return False
    modes = [value.value for value in (*call.args[:2], *given.values())
             if isinstance(value, ast.Constant) and isinstance(value.value, str) and set(value.value) <= MODES]
    if modes:
        return not any("b" in mode for mode in modes)
    return name == "TextIOWrapper" or (name == "open" and not given and (
        not call.args if isinstance(call.func, ast.Attribute) else True))


@pytest.mark.parametrize(("line", "expected"), [
    ("path.read_text()", True), ("path.read_text(encoding='utf-8')", False), ("path.open()", True),
    ("path.open('w')", True), ("path.open('rb')", False), ("open(path)", True), ("environment.open(task)", False),
    ("os.fdopen(handle, 'w')", True), ("subprocess.run(command, text=True)", True), ("Part(text=words)", False)])
def test_text_without_an_encoding_is_recognised(line: str, expected: bool):
    assert takes_text(ast.parse(line, mode="eval").body) is expected


def test_every_text_file_and_pipe_names_its_encoding():
    assert [f"{file.relative_to(ROOT)}:{node.lineno}"
            for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and takes_text(node)] == []
