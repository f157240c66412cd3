"""Options of `gagpo credit` that an estimator of the user's own declares."""

import json
import re
from enum import Enum

import pytest
from pydantic import BaseModel, Field

from deploy.cli import parse
from deploy.runs.configs import load_config
from learner.credit.estimator import CreditOptions, WithinGroup
from learner.credit.registry import ESTIMATORS, options_of
from learner.credit.types import Credit
from services.errors import UserError


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    a: int = 1
    b: float = 0.0


class Levels(WithinGroup):
    """An estimator whose advantages are its options."""

    class Options(CreditOptions):
        level: float = 1
        most: float | None = None
        weights: list[float] = Field(default_factory=list)
        inner: Inner = Inner()
        colour: Colour = Colour.RED
        word: str | None = None

    def group(self, group, options):
        more = sum(options.weights) + options.inner.b + (options.colour is Colour.BLUE) + len(options.word or "")
        rows = [[options.level + (options.most or 0.0) + more for _ in episode] for episode in group]
        return Credit(returns=rows, values=None, deltas=None, raw_advantages=rows, advantages=rows,
                      states=[[step.state for step in episode] for episode in group])


class Needy(Levels):
    """An estimator with an option that has no default."""

    class Options(Levels.Options):
        must: int


LEVELS = ("--estimator", f"{__name__}:Levels")
GROUP = json.dumps({"episodes": [{"steps": [{"state": "hall", "reward": 1.0}]}]})


@pytest.mark.parametrize(("given", "advantage"), [
    ((), 1.0), (("--level", "0.5"), 0.5), (("--most", "3"), 4.0), (("--most", "null"), 1.0), (("--most", "1e1"), 11.0),
    (("--weights", "[1, 2, 3]"), 7.0), (("--inner", '{"b": 3}'), 4.0), (("--inner", "{b: 3}"), 4.0),
    (("--colour", "blue"), 2.0), (("--word", "no"), 3.0), (("--word", "2026"), 5.0)])
def test_values_reach_the_estimator_whatever_their_types_are(tmp_path, capsys, given, advantage):
    (tmp_path / "group.json").write_text(GROUP)
    args = parse(["credit", str(tmp_path / "group.json"), *LEVELS, *given])
    assert args.run(args) == 0
    assert json.loads(capsys.readouterr().out)["advantages"] == [[advantage]]


def test_the_help_names_no_types_of_python_and_each_default_as_one_would_give_it(capsys):
    with pytest.raises(SystemExit):
        parse(["credit", *LEVELS, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "<class" not in shown
    for option, default in (("most MOST", "None"), ("weights WEIGHTS", "[]"), ("inner INNER", "{a: 1, b: 0.0}"),
                            ("colour COLOUR", "red")):
        assert f"--{option} (default {default}; for your own estimator)" in shown


@pytest.mark.parametrize(("given", "said"), [
    ((*LEVELS, "--inner", "3"), "option inner is a section and cannot be 3; give it as {KEY: VALUE}"),
    ((*LEVELS, "--weights", "[1"), "the value of --weights is not YAML; quote it"),
    ((*LEVELS, "--weights", "[a]"), "option weights.0 cannot be 'a'; it should be a valid number, unable to parse"),
    (("--estimator", f"{__name__}:Needy"), "option must is not set; give it a value")])
def test_a_wrong_value_is_told_by_what_can_be_typed(tmp_path, given, said):
    (tmp_path / "group.json").write_text(GROUP)
    with pytest.raises(UserError) as error:
        (args := parse(["credit", str(tmp_path / "group.json"), *given])).run(args)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(("overrides", "inner"), [
    (["inner.b=3"], Inner(b=3)), (["inner.b=3", "inner.a=2"], Inner(a=2, b=3)), (["inner={b: 3}"], Inner(b=3)),
    (["inner={a: 2}", "inner.b=3"], Inner(a=2, b=3))])
def test_a_key_below_an_option_is_set_as_the_refusal_says(overrides, inner):
    config = load_config("alfworld-tiny", [f"learner.credit.estimator={__name__}:Levels", *(
        f"learner.credit.{override}" for override in overrides)])
    assert options_of(config.learner.credit).inner == inner


@pytest.mark.parametrize(("override", "said"), [
    ("inner=3", "learner.credit.inner is a section and cannot be 3; set its keys: learner.credit.inner.KEY=VALUE"),
    ("inner.b=x", "learner.credit.inner.b cannot be 'x'; it should be a valid number"),
    ("iner.b=3", "unknown key learner.credit.iner: the estimator "),
    ("gamma.b=3", "unknown key learner.credit.gamma.b in the command line; ")])
def test_a_wrong_key_below_an_option_is_told_in_one_line(override, said):
    with pytest.raises(UserError) as error:
        load_config("alfworld-tiny", [f"learner.credit.estimator={__name__}:Levels", f"learner.credit.{override}"])
    assert str(error.value).startswith(said)


def test_no_option_names_an_estimator_that_the_command_refuses(capsys):
    with pytest.raises(SystemExit):
        parse(["credit", "--help"])
    words = set(re.findall(r"[\w-]+", capsys.readouterr().out))
    refused = {name for name, each in ESTIMATORS.items() if each.needs_critic or each.needs_tokens}
    assert refused == {"ppo", "reinforce_pp", "reinforce_pp_baseline"}
    assert words & refused == set()
    assert "--values" not in words, "no other estimator has this option"


def test_an_estimator_that_the_command_refuses_is_told_with_its_own_options_too(tmp_path, capsys):
    (tmp_path / "group.json").write_text(GROUP)
    args = parse(["credit", str(tmp_path / "group.json"), "--estimator", "ppo", "--values", "turns"])
    with pytest.raises(UserError, match="option estimator ppo: it needs a critic"):
        args.run(args)


@pytest.mark.parametrize(("option", "lacks"), [("stay", "which actions changed nothing"), ("bootstrap", "was cut")])
def test_an_option_that_reads_what_logs_of_verl_lack_is_refused(option, lacks):
    args = parse(["credit", "--from", "verl", f"--{option}"])
    with pytest.raises(UserError, match=f"^--{option}: logs of verl do not say .*{lacks}; leave --{option} out$"):
        args.run(args)


SEES_NOTHING = {
    "stay": "does nothing in this input, in which no step is `unchanged`",
    "bootstrap": "does nothing in this input, in which no episode has a `final_state`",
}


@pytest.mark.parametrize(("option", "why"), SEES_NOTHING.items())
def test_an_option_that_finds_nothing_to_read_is_told_once(tmp_path, capsys, option, why):
    (tmp_path / "group.json").write_text(GROUP)
    args = parse(["credit", str(tmp_path / "group.json"), f"--{option}"])
    assert args.run(args) == 0
    assert capsys.readouterr().err.splitlines()[0] == f"warning: --{option} {why}"
    args = parse(["credit", str(tmp_path / "group.json"), f"--{option}", "--estimator", "grpo"])
    assert args.run(args) == 0
    assert capsys.readouterr().err.splitlines()[0] == f"warning: --{option} does nothing under the estimator grpo"


def test_nothing_is_told_if_one_group_has_what_the_options_read(tmp_path, capsys):
    step = {"state": "hall", "reward": 1.0, "unchanged": True}
    read = json.dumps({"episodes": [{"steps": [step], "final_state": "cellar"}]})
    (tmp_path / "groups.jsonl").write_text(f"{GROUP}\n{read}\n")
    args = parse(["credit", str(tmp_path / "groups.jsonl"), "--stay", "--bootstrap"])
    assert args.run(args) == 0
    assert "does nothing" not in capsys.readouterr().err
