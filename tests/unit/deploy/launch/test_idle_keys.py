"""Keys without an effect are reported, and keys with an effect are not."""

import pytest

from deploy.launch import plan
from deploy.launch.idle_keys import idle_keys
from deploy.runs.configs import load_config


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
    ["learner.credit.state_key=similarity", "learner.credit.similarity=0.9"]])
def test_a_key_that_is_read_is_not_called_idle(overrides: list[str]):
    assert idle(*overrides) == []


def test_a_key_of_a_setting_that_is_off_is_told():
    assert idle("learner.credit.similarity=0.9") == [
        "learner.credit.similarity=0.9 does nothing under the estimator gagpo"]


def test_the_plan_names_a_key_without_effect(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = load_config("alfworld-tiny", ["learner.credit.omega=2"])
    line = "learner.credit.omega=2.0 does nothing under the estimator gagpo"
    assert f"\nwarning       {line}\n" in plan.describe(config)
    assert plan.as_dict(config)["warnings"] == [line]
