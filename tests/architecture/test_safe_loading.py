"""No loaded file can run code: every call that loads files names the safe argument."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SAID = {"from_pretrained": "trust_remote_code", "AsyncEngineArgs": "trust_remote_code", "np.load": "allow_pickle"}
"""Calls that could run code, and the argument that prevents it."""
NEVER = {"torch.load", "pickle.load", "pickle.loads", "yaml.unsafe_load", "yaml.full_load", "eval", "exec",
         "state_dict_loader.load", "joblib.load", "pd.read_pickle"}


def calls() -> Iterator[tuple[str, ast.Call]]:
    for folder in ("services", "envservice", "rollout", "learner", "deploy", "lab"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call):
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", node


def test_every_loader_says_that_it_runs_no_code():
    silent, seen = [], 0
    for where, call in calls():
        name = ast.unparse(call.func)
        argument = SAID.get(name) or SAID.get(name.rpartition(".")[2])
        if argument:
            seen += 1
            said = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            if said.get(argument) != "False":
                silent.append(where)
    assert seen >= 8
    assert silent == []


def test_nothing_is_unpickled_and_yaml_is_read_by_a_safe_loader():
    assert [where for where, call in calls() if ast.unparse(call.func) in NEVER] == []
    loaders = {ast.unparse(keyword.value) for _, call in calls() if ast.unparse(call.func) == "yaml.load"
               for keyword in call.keywords}
    assert loaders <= {"_Loader"}  # a yaml.SafeLoader of services/config/file.py
