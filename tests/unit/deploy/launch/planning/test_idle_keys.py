"""Keys without an effect are reported, and keys with an effect are not."""

from pathlib import Path

import pytest

from deploy.launch.planning import plan
from deploy.launch.planning.warnings import idle_keys
from deploy.runs.configs import SHIPPED, load_config


def idle(*overrides: str) -> list[str]:
    return idle_keys(load_config("alfworld-tiny", overrides))


def test_a_key_of_another_estimator_is_told():
    assert idle("learner.credit.omega=2") == ["learner.credit.omega=2.0 does nothing under the estimator gagpo"]
    assert idle("learner.credit.estimator=grpo", "learner.credit.lam=0.5", "learner.loss.ratio=token") == [
        "learner.credit.lam=0.5 does nothing under the estimator grpo"]
    assert idle("learner.critic.lr=1e-3") == ["learner.critic.lr=0.001 does nothing under the estimator gagpo"]


@pytest.mark.parametrize("overrides", [
    [], ["learner.credit.lam=0.5"], ["learner.credit.estimator=gigpo", "learner.credit.omega=2"],
    ["learner.credit.estimator=ppo", "learner.critic.lr=1e-3"],
    ["learner.credit.state_key=similarity", "learner.credit.similarity=0.9"],
    ["learner.staleness=1", "learner.loss.is_cap=3", "learner.loss.correction=decoupled"],
    ["learner.loss.corrected_rows=all", "learner.loss.is_cap=3"],
    ["learner.judge.questions=1", "learner.judge.answers=8", "learner.judge.weight=2", "learner.judge.correction=true"],
    ["learner.lora.rank=8", "learner.lora.alpha=16", "learner.lora.targets=[q_proj]"], ["sft.minutes=1"],
    ["sft.epochs=2"], ["learner.imitation.weight=0.1", "learner.imitation.rows=8", "learner.imitation.decay_steps=9"],
    ["learner.distill.teacher=t", "learner.distill.weight=2", "learner.distill.credit=0"],
    ["learner.credit.ddof=0"], ["learner.task_sampling=contrast"],
    ["learner.credit.ddof=0", "learner.credit.normalize=none", "learner.credit.broadcast=0.5"]])
def test_a_key_that_is_read_is_not_called_idle(overrides: list[str]):
    assert idle(*overrides) == []


def test_a_key_of_a_setting_that_is_off_is_told():
    assert idle("learner.credit.similarity=0.9") == [
        "learner.credit.similarity=0.9 does nothing under the state key observation"]
    assert idle("learner.credit.similarity=0.9", "learner.credit.estimator=grpo") == [
        "learner.credit.similarity=0.9 does nothing under the estimator grpo"]


@pytest.mark.parametrize(("overrides", "line"), [
    (["learner.loss.correction=none"], "learner.loss.correction=none does nothing at learner.staleness=0"),
    (["learner.loss.is_cap=3"], "learner.loss.is_cap=3.0 does nothing at learner.staleness=0"),
    (["learner.loss.power=1", "learner.loss.ratio=token"],
     "learner.loss.power=1.0 does nothing under learner.loss.ratio=token"),
    (["learner.loss.correction=coupled", "learner.staleness=1", "learner.loss.is_cap=3"],
     "learner.loss.is_cap=3.0 does nothing under learner.loss.correction=coupled"),
    (["learner.loss.correction=none", "learner.loss.corrected_rows=all"],
     "learner.loss.corrected_rows=all does nothing under learner.loss.correction=none"),
    (["learner.task_sampling=contrast", "learner.group_size=1"],
     "learner.task_sampling=contrast does nothing at learner.group_size=1"),
    (["learner.judge.answers=8"], "learner.judge.answers=8 does nothing at learner.judge.questions=0"),
    (["learner.judge.weight=2"], "learner.judge.weight=2.0 does nothing at learner.judge.questions=0"),
    (["learner.judge.correction=true"], "learner.judge.correction=true does nothing at learner.judge.questions=0"),
    (["learner.imitation.rows=8"], "learner.imitation.rows=8 does nothing at learner.imitation.weight=0"),
    (["learner.imitation.decay_steps=8"], "learner.imitation.decay_steps=8 does nothing at learner.imitation.weight=0"),
    (["learner.distill.weight=2"], "learner.distill.weight=2.0 does nothing without learner.distill.teacher"),
    (["learner.distill.credit=0"], "learner.distill.credit=0.0 does nothing without learner.distill.teacher"),
    (["learner.lora.alpha=16"], "learner.lora.alpha=16.0 does nothing at learner.lora.rank=0"),
    (["learner.lora.targets=[q_proj]"], "learner.lora.targets=[q_proj] does nothing at learner.lora.rank=0"),
    (["eval.on_panel=true"], "eval.episodes=48 does nothing at eval.on_panel=true"),
    (["eval.panel=0", "eval.panel_samples=2", "eval.compare_cold_start=false"],
     "eval.panel_samples=2 does nothing at eval.panel=0"),
    (["eval.panel=0", "eval.compare_cold_start=true"], "eval.compare_cold_start=true does nothing at eval.panel=0"),
    (["agent.max_calls=5"], "agent.max_calls=5 does nothing without agent.name"),
    (["sft.minutes=1", "sft.epochs=2"], "sft.minutes=1.0 does nothing with sft.epochs=2"),
    (["learner.credit.ddof=0", "learner.credit.normalize=none"],
     "learner.credit.ddof=0 does nothing under the estimator gagpo")])
def test_a_key_of_a_part_that_is_off_is_told(overrides: list[str], line: str):
    assert idle(*overrides) == [line]


@pytest.mark.parametrize("file", sorted(SHIPPED.rglob("*.yaml")), ids=lambda file: file.stem)
def test_no_shipped_config_sets_a_key_without_effect(file: Path):
    """But the credit experiments: one base sets the critic of the arm with PPO, and the games of another config."""
    known = ("learner.critic.lr=0.0005 ", "eval.episodes=140 ")
    if file.parent.name != "parts":
        lines = idle_keys(load_config(file, ["model.path=null", "sft.enabled=true"]))
        assert [line for line in lines if not (file.stem.startswith("credit-") and line.startswith(known))] == []


@pytest.mark.parametrize(("env", "says"), [("alfworld", True), ("webshop", True), ("scienceworld", False),
                                           ("search", False)])
def test_stay_is_told_for_an_environment_that_never_says_that_an_action_changed_nothing(env: str, says: bool):
    line = f"learner.credit.stay=true does nothing in {env}, which never says that an action changed nothing"
    assert idle("learner.credit.stay=true", f"env.name={env}") == ([] if says else [line])
    assert idle(f"env.name={env}") == []
    assert idle("learner.credit.stay=true", f"env.name={env}", "learner.credit.estimator=grpo") == [
        "learner.credit.stay=true does nothing under the estimator grpo"]


def test_the_plan_names_a_key_without_effect(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = load_config("alfworld-tiny", ["learner.credit.omega=2"])
    line = "learner.credit.omega=2.0 does nothing under the estimator gagpo"
    assert f"\nwarning       {line}\n" in plan.describe(config)
    assert plan.as_dict(config)["warnings"] == [line]
