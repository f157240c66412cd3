"""Configs: files, overrides, one-line errors, digests."""

from pathlib import Path

import pytest

from deploy.runs.configs import SHIPPED, find_config, load_config
from services.config.file import default_config, dump_config
from services.config.keys import config_keys
from services.errors import UserError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nsteps: 3\nlearner:\n  lr: 1e-4\n  loss: {kl: 0.5}\n")
    return path


def message(path: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as error:
        load_config(path, overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_values_of_the_file_and_defaults_of_the_tree(file: Path):
    config = load_config(file, [])
    assert (config.learner.lr, config.learner.loss.kl, config.learner.group_size) == (1e-4, 0.5, 8)


@pytest.mark.parametrize(("override", "section", "key", "value"), [
    ("learner.lr=3e-4", "learner", "lr", 3e-4),
    ("learner.betas=[0.9, 0.99]", "learner", "betas", (0.9, 0.99)),
    ("eval.compare_cold_start=true", "eval", "compare_cold_start", True),
    ("env.urls=[http://a:1]", "env", "urls", ("http://a:1",)),
    ("model.path=null", "model", "path", None),
    ("redis.url=redis://host:1/0?a=b", "redis", "url", "redis://host:1/0?a=b"),
    ("learner.minibatch_rows=0100", "learner", "minibatch_rows", 100),
    ("learner.minibatch_rows=1_000", "learner", "minibatch_rows", 1000),
    ("model.revision=12345e7", "model", "revision", "12345e7"),
    ("model.system_prompt=Answer: [yes] or {no} # please", "model", "system_prompt", "Answer: [yes] or {no} # please"),
    ("model.system_prompt='null'", "model", "system_prompt", "null"),
    ("model.path=", "model", "path", None),
    ("env.data=7", "env", "data", Path("7")),
    ("model.chat_template_kwargs={enable_thinking: false}", "model", "chat_template_kwargs",
     {"enable_thinking": False}),
])
def test_overrides_are_typed_as_in_yaml(file: Path, override: str, section: str, key: str, value: object):
    assert getattr(getattr(load_config(file, [override]), section), key) == value


def test_the_last_override_wins_and_leaves_its_neighbours_alone(file: Path):
    config = load_config(file, ["learner.loss.kl=1", "learner.loss.kl=2"])
    assert (config.learner.loss.kl, config.learner.lr) == (2.0, 1e-4)


def test_minutes_and_epochs_replace_each_other(tmp_path: Path):
    """A base's minutes would stay beside the epochs of the file above it, without effect and with a warning."""
    base, file = tmp_path / "base.yaml", tmp_path / "mine.yaml"
    base.write_text("name: base\nsteps: 3\nsft: {minutes: 9}\n")
    file.write_text("base: base\nname: mine\nsft: {epochs: 4}\n")

    def sft(*overrides: str) -> tuple[float, int | None]:
        found = load_config(file, overrides).sft
        return found.minutes, found.epochs

    assert sft() == (4.0, 4), "4 minutes are the default"
    assert sft("sft.minutes=7") == (7.0, None)
    assert sft("sft.epochs=2") == (4.0, 2)
    assert sft("sft.minutes=7", "sft.epochs=2") == (7.0, 2), "whoever gives both is told that one does nothing"
    assert load_config(base, ["sft.lr=1e-3"]).sft.minutes == 9.0


@pytest.mark.parametrize(("key", "nearest"), [
    ("learner.stalenes", "learner.staleness"),
    ("learner.loss.cliplow", "learner.loss.clip_low"),
    ("stepps", "steps"),
    ("group_size", "learner.group_size"),
    ("learner.token_budgett", "learner.token_budget"),
    ("rollouts.slots", "rollout.slots"),
    ("model_path", "model.path"),
])
def test_an_unknown_key_names_the_nearest_by_its_whole_path(file: Path, key: str, nearest: str):
    assert message(file, f"{key}=1").endswith(f"did you mean {nearest}?")


def test_a_wrong_value_is_changed_where_it_was_given(file: Path):
    said = "redis: password_file is set without url: set the address too, or leave out password_file; "
    assert message(file, "redis.password_file=/key") == f"{said}give another value"
    file.write_text("name: mine\nsteps: 3\nredis: {password_file: /key}\n")
    assert message(file, "learner.lr=1e-3") == f"{said}change it in {file} or override it on the command line"


def test_an_unknown_key_in_the_file_names_the_file(file: Path):
    file.write_text("name: mine\nsteps: 3\nrollout: {slot: 4}\n")
    assert message(file) == f"unknown key rollout.slot in {file}; did you mean rollout.slots?"


def test_a_last_part_that_several_sections_have_names_them_all(file: Path):
    assert message(file, "temperature=1").endswith("did you mean rollout.temperature or eval.temperature?")


@pytest.mark.attack
@pytest.mark.parametrize("override", [
    "name=..", "name=.", "name=.hidden", f"name={'n' * 300}", 'name="a/b"', 'name=""',
    "learner.lr=.inf", "learner.lr=.nan", "learner.betas=[2, 2]", "learner.betas=[-1, 0.9]", "env.reward_scale=.inf",
    "rollout.temperature=.inf", "eval.temperature=.nan", "eval.panel_temperatures=[.inf]", "sft.minutes=.inf",
    "eval.panel_temperatures=[0.0]", "steps=100000000000000000000000", "sft.minutes=1e30", "metrics.port=99999",
    f"seed={10**30}", 'runs_dir="a\\0b"', f"learner.lr={'[' * 5000}", "learner.loss.clip_high=.inf",
    "rollout.cpus=.nan", "rollout.sample_seconds=1e308", "learner.lr=1e22"])
def test_values_that_no_run_can_use_are_refused_in_one_line(file: Path, override: str):
    """`..` as a name once deleted what lay beside the folder of runs."""
    assert message(file, override)


@pytest.mark.parametrize(("override", "expected"), [
    ("seed=-1", "seed cannot be -1; it should be greater than or equal to 0"),
    ("rollout.slots=0", "rollout.slots cannot be 0; it should be greater than or equal to 1"),
    ("eval.temperature=0.005", "eval.temperature cannot be 0.005; it should be greater than or equal to 0.01"),
    ("learner.lr=fast", "learner.lr cannot be 'fast'; it should be a valid number, unable to parse string as a number"),
    ("learner.staleness=yes", "learner.staleness: it should be a number, not true; give another value"),
    ("autoscale.rollout=[yes, 8]", "autoscale.rollout: it should be a number, not true; give another value"),
    ("learner.betas=[0.9, no]", "learner.betas: it should be a number, not false; give another value"),
    ("autoscale.rollout=[1, 10000000000000000]",
     "autoscale.rollout: it should be a number that a run can reach; give another value"),
    ("sft.minutes=1:30",
     "sft.minutes cannot be '1:30'; it should be a valid number, unable to parse string as a number"),
    ("eval={every: 10, panel: 9}", "eval is a section, and 'eval={every: 10, panel: 9}' would replace all of it; "
     "give its keys one by one: eval.every=VALUE eval.panel=VALUE"),
    ("learner.credit.ddof=2", "learner.credit.ddof cannot be 2; it should be 0 or 1"),
    ("name=a b", "name cannot be 'a b'; use letters, digits, `.`, `_` and `-`, and begin with a letter "
     "or a digit"),
    ("eval.panel_temperatures=[1.0, 0.4, 1]", "eval.panel_temperatures: 1.0 is there twice, and its games would be "
     "played twice; give another value"),
])
def test_a_value_out_of_range_is_one_line(file: Path, override: str, expected: str):
    assert message(file, override) == expected


@pytest.mark.parametrize(("overrides", "expected"), [
    ("learner.gpus=2", "learner: gpus=2 reserves more GPUs than a rank uses; set gpus=1 and ranks=2"),
    ("learner.fewest_ranks=2",
     "learner: fewest_ranks=2 is more than ranks=1; set fewest_ranks=1 or lower, or remove it"),
    ("rollout.exact=true model.dtype=bfloat16", "rollout.exact needs float32, and model.dtype is bfloat16; "
     "set model.dtype=float32"),
    ("rollout.exact=true learner.judge.correction=true", "rollout.exact repeats a run, and with "
     "learner.judge.correction prompts depend on which episode ends first; set one of them to false"),
])
def test_keys_that_contradict_each_other_are_refused_to_every_reader(file: Path, overrides: str, expected: str):
    assert message(file, *overrides.split()) == expected


def test_contradictions_of_several_sections_come_together(file: Path):
    with pytest.raises(UserError) as error:
        load_config(file, ["learner.gpus=2", "rollout.gpus=2"])
    assert [line.partition("=")[0] for line in str(error.value).splitlines()] == ["rollout: gpus", "learner: gpus"]


def test_values_at_dotted_keys_are_replaced_in_a_copy():
    config = default_config()
    changed = config.with_keys({"steps": 3, "learner.lora.rank": 4, "learner.ranks": 2})
    assert (changed.steps, changed.learner.lora.rank, changed.learner.ranks) == (3, 4, 2)
    assert (config.steps, config.learner.lora.rank, config.learner.ranks) == (1, 0, 1)


@pytest.mark.parametrize(("value", "in_file"), [("80", "80"), ("0x80", "128"), ("x80", "'x80'")])
def test_hardware_that_names_no_gpus_is_told_the_form(file: Path, value: str, in_file: str):
    """YAML reads the first two as numbers in a file."""
    form = "names no GPUs; write their number and the GB of each, such as 8x80, or cpu"
    assert message(file, f"hardware={value}").startswith(f"hardware: {value!r} {form}")
    file.write_text(f"name: mine\nsteps: 3\nhardware: {value}\n")
    assert message(file).startswith(f"hardware: {in_file} {form}")


def test_a_bootstrap_without_a_state_to_end_in_is_refused(file: Path):
    found = message(file, "learner.credit.bootstrap=true", "learner.credit.state_key=prompt")
    assert "learner.credit.bootstrap needs the state key of the last observation" in found


def test_a_missing_required_key_is_named(file: Path):
    file.write_text("name: mine\n")
    assert message(file) == f"steps is not set; set it in {file} or give steps=VALUE"


def test_all_mistakes_of_a_config_come_together(file: Path):
    """Unknown keys of the file and of the command line, values out of range, and a union's value once."""
    file.write_text("name: mine\nsteps: 1\nlearner: {rate: 1, lr: 0}\n")
    with pytest.raises(UserError) as error:
        load_config(file, ["rollout.slots=0", "learner.checkpointing=maybe", "learner.learning_rate=1"])
    assert [each.what for each in (error.value, *error.value.others)] == [
        f"unknown key learner.rate in {file}", "unknown key learner.learning_rate in the command line",
        "rollout.slots cannot be 0", "learner.lr cannot be 0", "learner.checkpointing.bool cannot be 'maybe'"]
    assert str(error.value).splitlines()[-2:] == [
        "learner.lr cannot be 0; it should be greater than 0", str(error.value.others[-1])]


@pytest.mark.parametrize(("text", "expected"), [
    ("name: [", "is not YAML"),
    ("just words", "holds no settings"),
    ("name: a\nname: b\nsteps: 1\n", "key name is given twice"),
    ("format: 9\nname: a\nsteps: 1\n", "has format 9"),
    ("name: a\nsteps: 1\nlearner: 3\n", "learner is a section and cannot be 3; set its keys: learner.KEY=VALUE"),
    ("name: a\n  steps: 1\n", "is not YAML: line 2: mapping values are not allowed here; correct the file"),
    ("[" * 10_000, "nested too deeply"),
    ("name: &a [*a]\n", "is not YAML: line 1: an alias stands for what it is in; correct the file"),
    ("a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(  # 9**10 values
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)),
     "is not YAML: line 6: it holds more than 100000 values; correct the file"),
    ("a0: &a0 {k: 1}\n" + "".join(  # the same by merge keys
        f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 10)),
     "it holds more than 100000 values"),
    ("name: a\x00b\n", "is not YAML"),
    ("name: a\n" * 200_000, "is larger than 1 MiB"),
    ("steps: 2026-13-45\n", "is not YAML"),
    (f"name: a\nsteps: 0x{'f' * 5000}\n", "is not YAML: line 2: a number has more than 1000 digits"),
])
def test_a_broken_file_is_one_line(file: Path, text: str, expected: str):
    file.write_text(text)
    assert expected in message(file)


def test_of_many_unknown_keys_or_a_long_one_a_file_is_told_soon(file: Path):
    """40,000 in half a megabyte hung every command that read them, and so did one of as many letters."""
    file.write_text("name: a\nsteps: 1\n" + "".join(f"k{number}: 1\n" for number in range(3000)))
    with pytest.raises(UserError) as error:
        load_config(file)
    assert len(str(error.value).splitlines()) == 50
    file.write_text(f"name: a\nsteps: 1\n? {'k' * 500_000}\n: 1\n")
    assert message(file).startswith(f"unknown key {'k' * 100} in {file}; ")


def test_a_long_value_is_cut_in_its_refusal(file: Path):
    assert len(message(file, f"steps={'x' * 5000}")) < 700
    assert len(message(file, f"steps=[{'1,' * 5000}]")) < 700


def test_a_key_that_no_other_resembles_is_told_the_nearest_of_its_section(file: Path):
    """It was told all of forty."""
    assert message(file, "learner.batch_size=1") == (
        "unknown key learner.batch_size in the command line; the nearest of the 23 keys of learner are minibatch_rows, "
        "group_size, wait_s; all are in docs/reference/configuration.md")
    for key in ("zzzzzz", "zzzz.yyyy"):
        assert f"unknown key {key} in the command line; the nearest of the 23 keys and sections are " in message(
            file, f"{key}=1")


def test_a_config_that_no_other_resembles_is_told_three_names():
    with pytest.raises(UserError) as error:
        find_config("my/alf.yaml")
    assert error.value.fix == ("give the path of a YAML file, or a shipped name such as alfworld-7b, alfworld-32b, "
                               "alfworld-tiny")


def test_an_override_in_two_words_is_told_how_to_write_it(file: Path):
    assert message(file, "learner.lr", "=3") == (
        "'learner.lr' is not an override; write it as learner.lr=VALUE, without spaces")


def test_the_folder_of_a_run_is_not_a_config_and_the_message_names_the_file_in_it(tmp_path: Path):
    (tmp_path / "config.yaml").write_text("name: a\nsteps: 1\n")
    assert message(tmp_path) == (f"{tmp_path} is a folder, not a config file; give {tmp_path}/config.yaml, or continue "
                                 "a run by --resume")


def test_a_path_may_begin_with_the_home_folder(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home-of-a-user")
    config = load_config(file, ["model.path=~/models/mine", "env.data=~/games", "runs_dir=~/runs"])
    assert [str(path) for path in (config.model.path, config.env.data, config.run_dir.parent)] == [
        "/home-of-a-user/models/mine", "/home-of-a-user/games", "/home-of-a-user/runs"]


@pytest.mark.parametrize("override", [
    "env.urls=[127.0.0.1:8100]", "env.urls=[ftp://host:8100]", "env.urls=[http://env..ns:8100]",
    "env.urls=[http://host:99999]", "env.urls=[http://host:abc]", "env.urls=['http://[::1:8100']"])
def test_an_address_of_a_server_without_http_is_refused(file: Path, override: str):
    assert "is no address of a server, such as http://127.0.0.1:8100" in message(file, override)


@pytest.mark.parametrize("override", ["learner.lr", "=3", "learner.lr=[1"])
def test_a_broken_override_is_one_line(file: Path, override: str):
    assert override in message(file, override)


def test_a_missing_file_names_the_shipped_configs(tmp_path: Path):
    assert "there is no config file" in message(tmp_path / "absent.yaml")


WHOLE = [path for path in sorted(SHIPPED.rglob("*.yaml")) if path.parent.name != "parts"]
"""A part is only ever a base among others."""


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_every_shipped_config_is_found_by_its_name_and_loads(path: Path):
    """By its bare name, which no other has and its run takes, and by its name with the folder."""
    assert find_config(path.stem) == path
    assert find_config(path.name) == path
    assert find_config(path.relative_to(SHIPPED)) == path
    assert load_config(path.stem).name == path.stem


def test_of_several_bases_each_is_laid_over_the_one_before_it(file: Path):
    first, second, top = (file.with_name(name) for name in ("first.yaml", "second.yaml", "top.yaml"))
    first.write_text("steps: 3\nenv: {max_steps: 7, history: 1}\n")
    second.write_text("env: {history: 4}\n")
    top.write_text("base: [first, second]\nname: top\n")
    config = load_config(top)
    assert (config.name, config.steps, config.env.max_steps, config.env.history) == ("top", 3, 7, 4)


def test_a_config_builds_on_its_base(file: Path):
    """On the file beside it; sections key by key, the nearer file wins, and an override wins over all."""
    middle, top = file.with_name("middle.yaml"), file.with_name("top.yaml")
    middle.write_text("base: mine\nsteps: 4\nlearner: {loss: {entropy: 0.25}}\n")
    top.write_text("base: middle.yaml\nname: top\nlearner: {lr: 2e-4, betas: [0.5, 0.5]}\n")
    config = load_config(top, ["learner.loss.is_cap=3"])
    assert (config.name, config.steps, config.learner.lr) == ("top", 4, 2e-4)
    loss = config.learner.loss
    assert (loss.kl, loss.entropy, loss.is_cap) == (0.5, 0.25, 3)
    file.write_text("name: mine\nsteps: 3\nlearner: {betass: 1}\n")
    assert message(top).startswith(f"unknown key learner.betass in {file}")


def test_a_base_may_be_a_shipped_config(file: Path):
    file.write_text("base: alfworld-tiny\nname: mine\n")
    assert load_config(file).env.alfworld.task_types == ("pick", "look")


def test_a_base_that_is_not_there_or_turns_in_a_circle_is_one_line(file: Path):
    file.write_text("base: absent\nname: mine\n")
    assert "there is no config file absent" in message(file)
    file.write_text("base: other\nname: mine\n")
    file.with_name("other.yaml").write_text("base: mine\n")
    assert message(file).startswith(f"{file} is its own base")


def test_a_dumped_config_reads_back_as_an_equal_one(file: Path, tmp_path: Path):
    config = load_config(file, ["env.data=games", "learner.lr=1e-5"])
    dump_config(config, tmp_path / "run" / "config.yaml")
    assert (tmp_path / "run" / "config.yaml").read_text().startswith("format: 1\n")
    again = load_config(tmp_path / "run" / "config.yaml")
    assert again == config


def test_keys_are_leaves_with_their_whole_path():
    keys = list(config_keys())
    assert {"name", "learner.lr", "learner.credit.gamma"} <= set(keys)
    assert "learner" not in keys


def test_a_list_that_is_given_a_word_says_how_to_write_it(file: Path):
    with pytest.raises(UserError) as error:
        load_config(file, ["env.alfworld.task_types=pick"])
    assert str(error.value) == "env.alfworld.task_types is a list and cannot be 'pick'; write [pick]"
