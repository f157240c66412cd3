"""Names of keys: what is no key is told the one that was meant, and texts stay texts."""

from pathlib import Path

import pytest

from deploy.runs.configs import load_config
from services.config.file import dump_config
from services.config.keys import nearest, takes_text
from services.errors import UserError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mine.yaml"


@pytest.mark.parametrize(("text", "line"), [
    ("Learner: {lr: 0.1}", "unknown key Learner in FILE; did you mean learner?"),
    ("learnr: {lr: 0.1}", "unknown key learnr in FILE; did you mean learner?"),
    ("learner: {LR: 0.1}", "unknown key learner.LR in FILE; did you mean learner.lr?"),
    ("learner.lr: 0.1", "the key learner.lr has a dot in FILE; write learner: {lr: VALUE}"),
    ("learner.loss.kl: 0.1", "the key learner.loss.kl has a dot in FILE; write learner: {loss: {kl: VALUE}}"),
    ("learner: {loss.kl: 0.1}", "the key learner.loss.kl has a dot in FILE; write loss: {kl: VALUE}"),
    ("learner.credit.lam: 1", "the key learner.credit.lam has a dot in FILE; write learner: {credit: {lam: VALUE}}"),
    ("learner: {lr:0.1}", "unknown key learner.lr:0.1 in FILE; write a space after the colon: lr: 0.1"),
    ("base:", "FILE: base has no value; name a config file, or remove `base`"),
    ("base: [3]", "FILE: base cannot be 3; name a config file, or remove `base`"),
    ("name: 2026", "name is a text and cannot be 2026; write it in quotes in FILE"),
    ("name: 2026-11-24", "name is a text and cannot be 2026-11-24; write it in quotes in FILE"),
    ("name:", "name has no value; it should be a valid string"),
])
def test_a_wrong_key_of_a_file_is_told_the_form(file: Path, text: str, line: str):
    file.write_text("\n".join([*([] if text.startswith("name") else ["name: mine"]), "steps: 3", text]) + "\n")
    with pytest.raises(UserError) as error:
        load_config(file)
    assert str(error.value) == line.replace("FILE", str(file))


@pytest.mark.parametrize(("key", "advice"), [
    ("eval.games", "the keys of eval are every, "),  # it named env.name
    ("eval.batch", "the keys of eval are every, "),  # model.path
    ("eval.interval", "the keys of eval are every, "),  # model.intermediate
    ("wandb.project", "the nearest of the 23 keys and sections are "),  # env.webshop.products
    ("learner.lora.r", "the keys of learner.lora are rank, "),  # learner.lr
    ("learner.lora.dropout", "the keys of learner.lora are rank, "),  # placement.rollout
    ("redis.port", "did you mean metrics.port? If not: the keys of redis are url, "),
    ("env.wokers", "did you mean rollout.workers? If not: the nearest of the 17 keys of env are "),
    ("eval.sample", "did you mean eval.panel_samples?"),
    ("learner.steps", "did you mean steps?"),
    ("learner.learning_rate", "did you mean learner.lr?"),
    ("learning_rate", "did you mean sft.lr or learner.lr or learner.critic.lr?"),
    ("learner.loss_ratio", "did you mean learner.loss.ratio?"),
    ("learner.clip_low", "did you mean learner.loss.clip_low?"),
    ("rolout.temprature", "did you mean rollout.temperature?"),
])
def test_a_key_of_another_section_is_advised_by_its_name_alone_and_beside_the_keys_of_the_one_that_was_given(
        key: str, advice: str):
    said = nearest(key)
    assert said.startswith(advice) if advice.endswith(" ") or "If not" in said else said == advice


@pytest.mark.parametrize(("override", "line"), [
    ("name=", "name has no value; it should be a valid string"),
    ("learner.credit.gamma=null", "learner.credit.gamma has no value; it should be a valid number"),
    ("learner=", "learner is a section and has no value; set its keys: learner.KEY=VALUE"),
    ("env.urls=", "env.urls is a list and has no value; write [] or [VALUE, VALUE]"),
    ("env.urls=a", "env.urls is a list and cannot be 'a'; write [a]"),
    ("autoscale.rollout=[2]", "autoscale.rollout takes two values and cannot be [2]; write [VALUE, VALUE]"),
    ("autoscale.env=8", "autoscale.env takes two values and cannot be 8; write [VALUE, VALUE]"),
    ("learner.betas=[0.9]", "learner.betas takes two values and cannot be [0.9]; write [VALUE, VALUE]"),
    ("learner.betas=[0.9, 0.99, 0.5]",
     "learner.betas takes two values and cannot be [0.9, 0.99, 0.5]; write [VALUE, VALUE]"),
    ("learner.betas=", "learner.betas takes two values and has no value; write [VALUE, VALUE]"),
    ("runs_dir=", "runs_dir has no value; give a path")])
def test_a_key_without_a_value_on_the_command_line_is_told_in_words_of_the_user(override: str, line: str):
    """They said that it cannot be None, which nobody had typed."""
    with pytest.raises(UserError) as error:
        load_config("alfworld-tiny", [override])
    assert str(error.value) == line


@pytest.mark.parametrize("name", ["2026", "2026-11-24", "1e5", "no", "007"])
def test_a_name_on_the_command_line_is_the_text_that_was_typed(name: str):
    """YAML reads numbers, dates and truth values in them, and no quotes of the shell would help."""
    assert load_config("alfworld-tiny", [f"name={name}"]).name == name


def test_variables_of_a_chat_template_are_read_back_from_a_run_folder(file: Path):
    """They are a mapping with names of its own. A run that had one could not be resumed."""
    config = load_config("alfworld-tiny", ["name=mine", "model.chat_template_kwargs={enable_thinking: false}"])
    dump_config(config, file)
    assert load_config(file) == config


def test_a_file_of_almost_the_same_name_is_proposed(file: Path):
    file.write_text("base: alfworld-tiny\nname: mine\n")
    with pytest.raises(UserError, match=f"did you mean {file}"):
        load_config(file.with_suffix(".yml"))


@pytest.mark.parametrize(("key", "texts"), [
    ("name", True), ("model.path", True), ("learner.lr", False), ("env.urls", False), ("eval.panel", False),
    ("learner.credit.own", False), ("model.chat_template_kwargs", False)])
def test_keys_of_texts_and_paths_are_known(key: str, texts: bool):
    assert takes_text(key) == texts


@pytest.mark.parametrize("role", ["rollout", "learner", "environment", "weights"])
@pytest.mark.parametrize("resource", ["GPU", "CPU", "memory", '""'])
def test_nodes_are_marked_by_a_resource_of_the_users_own(role: str, resource: str):
    """Ray would give a process a thousandth of a GPU."""
    with pytest.raises(UserError, match=rf"placement.{role}: .* marks no nodes: it should be a resource of your own"):
        load_config("alfworld-tiny", [f"placement.{role}={resource}"])
