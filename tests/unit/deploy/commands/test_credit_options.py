"""Options of `gagpo credit` that an estimator of the user's own declares."""

import json
import re

import pytest
from pydantic import Field

from deploy.cli import parse
from learner.credit.base import CreditOptions, WithinGroup
from learner.credit.registry import ESTIMATORS
from learner.credit.types import Credit
from services.errors import UserError


class Levels(WithinGroup):
    """An estimator whose advantages are its options."""

    class Options(CreditOptions):
        level: float = 1
        most: float | None = None
        weights: list[float] = Field(default_factory=list)

    def group(self, group, options):
        rows = [[options.level + (options.most or 0.0) for _ in episode] for episode in group]
        return Credit(returns=rows, values=None, deltas=None, raw_advantages=rows, advantages=rows,
                      states=[[step.state for step in episode] for episode in group])


LEVELS = ("--estimator", f"{__name__}:Levels")
GROUP = json.dumps({"episodes": [{"steps": [{"state": "hall", "reward": 1.0}]}]})


@pytest.mark.parametrize(("given", "advantage"), [((), 1.0), (("--level", "0.5"), 0.5), (("--most", "3"), 4.0)])
def test_numbers_reach_the_estimator_whatever_its_defaults_are(tmp_path, capsys, given, advantage):
    (tmp_path / "group.json").write_text(GROUP)
    args = parse(["credit", str(tmp_path / "group.json"), *LEVELS, *given])
    assert args.run(args) == 0
    assert json.loads(capsys.readouterr().out)["advantages"] == [[advantage]]


def test_the_help_names_no_types_of_python(capsys):
    with pytest.raises(SystemExit):
        parse(["credit", *LEVELS, "--help"])
    shown = capsys.readouterr().out
    assert "--most MOST" in shown
    assert "--weights" in shown
    assert "<class" not in shown


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
    assert capsys.readouterr().err == f"warning: --{option} {why}\n"
    args = parse(["credit", str(tmp_path / "group.json"), f"--{option}", "--estimator", "grpo"])
    assert args.run(args) == 0
    assert capsys.readouterr().err == f"warning: --{option} does nothing under the estimator grpo\n"


def test_nothing_is_told_if_one_group_has_what_the_options_read(tmp_path, capsys):
    step = {"state": "hall", "reward": 1.0, "unchanged": True}
    read = json.dumps({"episodes": [{"steps": [step], "final_state": "cellar"}]})
    (tmp_path / "groups.jsonl").write_text(f"{GROUP}\n{read}\n")
    args = parse(["credit", str(tmp_path / "groups.jsonl"), "--stay", "--bootstrap"])
    assert args.run(args) == 0
    assert capsys.readouterr().err == ""
