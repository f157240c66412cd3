"""The plan of a prompting baseline: which settings decide its trials, and the prompts that it refuses."""

from pathlib import Path

import pytest

from deploy.runs.configs import load_config
from deploy.runs.policies import find_policy
from deploy.training.prompting import episodes_file, make_plan, open_trials
from services.config.file import default_config, lay_over
from services.errors import UserError


def test_the_longest_prompt_of_our_own_sampler_is_a_setting_of_its_trials():
    config = default_config(["env.name=toy_environment:SPEC", "eval.panel=3", "rollout.max_prompt_tokens=99"])
    assert make_plan(config, "react", None, weights="").settings("m")["prompt_tokens"] == 99
    assert "prompt_tokens" not in make_plan(config, "react", None).settings("m")


@pytest.mark.parametrize(("key", "value"), [
    ("model.chat_template_kwargs", {"enable_thinking": False}), ("model.system_prompt", "Be brief."),
    ("model.chat_template", "/templates/short.jinja")])
def test_the_chat_template_of_our_own_sampler_is_a_setting_of_its_trials(tmp_path: Path, key: str, value: object):
    """A file of before, without the key, is of the default."""
    config = default_config(["env.name=toy_environment:SPEC", "eval.panel=3"])
    before = make_plan(config, "react", None, weights="").settings("m")
    now = make_plan(lay_over(config, {key: value}), "react", None, weights="").settings("m")
    open_trials(tmp_path / "e.jsonl", before)
    with pytest.raises(UserError, match=f"has trials with {key.removeprefix('model.')}=None, and this evaluation has"):
        open_trials(tmp_path / "e.jsonl", now)
    assert make_plan(lay_over(config, {key: value}), "react", None).settings("m").keys() == before.keys() - {
        "prompt_tokens"}


def test_trials_of_a_model_are_not_those_of_another_in_a_folder_of_the_same_name(tmp_path: Path):
    """A folder that was exported again had the results of the model before, and nothing was played."""
    config = default_config(["env.name=toy_environment:SPEC", "eval.panel=3"])
    folder, settings = tmp_path / "exported", list[dict[str, object]]()
    for weights in (b"one", b"two", b"two"):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(weights)
        found = find_policy(folder)
        settings.append(make_plan(config, "react", None, weights=found.weights()).settings(found.name))
    open_trials(tmp_path / "e.jsonl", settings[1])
    assert open_trials(tmp_path / "e.jsonl", settings[2]) == []
    with pytest.raises(UserError, match=r"has trials with weights=.*, and this evaluation has weights="):
        open_trials(tmp_path / "e.jsonl", settings[0])


@pytest.mark.parametrize("weights", [None, ""])
def test_a_prompt_without_instructions_is_never_asked_by_direct(weights: str | None):
    """Its whole message was the task and the page: no model could know what to do, and each won nothing."""
    with pytest.raises(UserError, match=r"env\.prompt=compact is raw text .*; set env\.prompt=full"):
        make_plan(load_config("webshop-tiny"), "direct", None, weights=weights)
    assert make_plan(load_config("webshop-tiny", ["env.prompt=full"]), "direct", None, weights=weights)


def test_react_needs_no_instructions_of_an_environment_that_lists_its_actions():
    assert make_plan(load_config("webshop-tiny"), "react", None)


def test_a_file_that_is_something_else_is_named(tmp_path: Path):
    file = tmp_path / "e.jsonl"
    file.write_text('{"a": 1}\n')
    with pytest.raises(UserError, match="does not begin with the settings"):
        open_trials(file, {})
    assert episodes_file(Path("x/react-m.eval.jsonl")) == Path("x/react-m.eval.episodes.jsonl")
