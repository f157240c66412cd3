"""A config whose `env` is a list of environments."""

from pathlib import Path

import pytest

from deploy.runs.configs import SHIPPED, lay_over, load_config
from services.config.env import EnvSection
from services.config.file import dump_config, flatten, read_tree
from services.config.tree import Config
from services.errors import UserError

HEAD = "name: several\nsteps: 1\n"
LIST = f"""{HEAD}env:
- {{name: guess, max_steps: 3, servers: 2}}
- {{name: search, weight: 3, max_steps: 4, prompt: compact}}
"""


def read(folder: Path, text: str, *overrides: str) -> Config:
    (folder / "config.yaml").write_text(text)
    return load_config(folder / "config.yaml", overrides)


def test_each_entry_is_a_view_with_the_servers_of_the_first(tmp_path: Path):
    views = read(tmp_path, LIST).views
    assert [(view.env.name, view.env.weight, view.env.max_steps, view.env.prompt) for view in views] == [
        ("guess", 1.0, 3, "full"), ("search", 3.0, 4, "compact")]
    assert [(view.env.servers, view.env.more, view.steps) for view in views] == [(2, (), 1), (2, (), 1)]


def test_a_list_is_written_as_a_list_and_read_back_as_the_same_config(tmp_path: Path):
    config = read(tmp_path, LIST, "env.servers=5")
    dump_config(config, tmp_path / "again.yaml")
    entries = read_tree(tmp_path / "again.yaml")["env"]
    assert [entry["name"] for entry in entries] == ["guess", "search"]
    assert "servers" not in entries[1], "the first entry has those of all"
    assert load_config(tmp_path / "again.yaml") == config
    assert Config.model_validate_json(config.model_dump_json()) == config


def test_a_config_of_one_environment_has_no_key_of_a_list(tmp_path: Path):
    config = read(tmp_path, f"{HEAD}env: {{name: guess, max_steps: 3}}")
    assert not {"weight", "more"} & config.model_dump()["env"].keys()
    assert not {"env.weight", "env.more"} & flatten(config).keys()
    assert config.views == (config,)
    assert read(tmp_path, f"{HEAD}env: [{{name: guess, max_steps: 3}}]") == config, "a list of one"


def test_tasks_belong_to_the_entry_of_their_name_and_all_others_to_an_own_environment():
    env = EnvSection(name="my_game:SPEC", more=(EnvSection(name="alfworld"), EnvSection(name="search")))
    tasks = ("alfworld-gen/train/1", "alfworld/train/1", "search-gen/train/q", "my-game/train/1")
    assert [env.entry_of(task).name for task in tasks] == ["alfworld", "alfworld", "search", "my_game:SPEC"]
    with pytest.raises(KeyError):
        EnvSection(name="guess", more=(EnvSection(name="search"),)).entry_of("webshop/train/1")
    alone = EnvSection(name="guess")
    assert alone.entry_of("webshop/train/1") is alone


def test_a_list_replaces_the_environment_of_its_base_and_a_section_changes_the_servers_of_a_list(tmp_path: Path):
    env = read(tmp_path, f"base: alfworld-tiny\n{LIST}").env
    assert (env.max_steps, env.prompt, len(env.more)) == (3, "full", 1), "nothing of alfworld-tiny"
    (tmp_path / "several.yaml").write_text(LIST)
    assert read(tmp_path, "base: several\nenv: {servers: 7}").env.servers == 7
    with pytest.raises(UserError, match=r"^env\.max_steps is given for all of a list of environments; set it in an "):
        read(tmp_path, "base: several\nenv: {max_steps: 7}")


@pytest.mark.parametrize("key", ["env.max_steps=2", "env.weight=2", "env.name=guess", "env.alfworld.level=L0"])
def test_a_key_of_one_entry_is_refused_for_all(tmp_path: Path, key: str):
    config = read(tmp_path, LIST)
    name, value = key.split("=")
    section = ".".join(name.split(".")[:2])
    with pytest.raises(UserError, match=rf"^{section} is given for all of a list of environments; set it in an entry "):
        read(tmp_path, LIST, key)
    with pytest.raises(UserError, match=rf"^{name} is given for all of a list of environments; "):
        lay_over(config, {name: value})


@pytest.mark.parametrize(("env", "message"), [
    ("[]", r"the list env in .* has no entries; write each environment as {name: NAME, weight: 1"),
    ("[guess, search]", r"the list env in .* has 'guess' as entry 0; "),
    ("[{name: guess}, {prompt: full}]", r"the list env in .* has {'prompt': 'full'} as entry 1, without a name; "),
    ("[{name: guess}, {name: guess}]", r"env: the list names guess twice; "),
    ("[{name: 'a:B'}, {name: 'c:D'}]", r"env: the list names a:B and c:D, and .*; list at most one environment of "),
    ("[{name: guess}, {name: search, servers: 2}]", r"env: env\[1\]\.servers is 2, and each server plays all .*; set "),
    ("[{name: guess}, {name: search, weight: 0}]", r"env\[1\]\.weight cannot be 0; it should be greater than or "),
    ("[{name: guess}, {name: search, max_step: 2}]", r"unknown key env\.max_step in .*; did you mean env\.max_steps\?"),
    ("{name: guess, weight: 2}", r"env\.weight=2 is for a list of environments, and env is one; leave it out"),
    ("{name: guess, more: [{name: search}]}", r"unknown key env\.more in "),
])
def test_a_mistake_in_a_list_is_one_line(tmp_path: Path, env: str, message: str):
    with pytest.raises(UserError, match=message):
        read(tmp_path, f"{HEAD}env: {env}\n")


@pytest.mark.parametrize("key", ["agent.name=my_agent:play", "sft.file=mine.jsonl", "learner.judge.correction=true",
                                 "learner.task_sampling=contrast"])
def test_keys_that_do_not_work_with_a_list_are_refused_by_name(tmp_path: Path, key: str):
    with pytest.raises(UserError, match=rf"^{key.replace('true', 'True')} does not work with a list of environments; "):
        read(tmp_path, LIST, key)


def test_the_shipped_list_is_one():
    assert [view.env.name for view in load_config(SHIPPED / "generalist-tiny.yaml").views] == ["alfworld", "search"]
