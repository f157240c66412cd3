"""Choices that would do nothing are refused before a run starts."""

from pathlib import Path

import pytest

from deploy.launch.checks import preflight
from deploy.runs.configs import load_config
from services.errors import UserError


@pytest.fixture(autouse=True)
def generated_games(two_cpus: None, monkeypatch: pytest.MonkeyPatch):
    """Provides a machine that is the same on any test machine, and generated games."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)


def test_a_file_is_read_for_imitation_alone(tmp_path: Path):
    """Without a cold start, too: its mistakes are found."""
    (tmp_path / "shown.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="line 1 has neither messages nor steps"):
        preflight.check(load_config("alfworld-tiny", (
            "eval.episodes=8", "eval.panel=8", f"sft.file={tmp_path / 'shown.jsonl'}", "sft.enabled=false",
            "learner.imitation.weight=0.1")))


@pytest.mark.parametrize(("overrides", "expected"), [
    (("sft.file=shown.jsonl", "sft.enabled=false"), "sft.file=shown.jsonl would not be read, because sft.enabled is f"),
    (("sft.file=shown.jsonl", "sft.judgements=0.1"), "sft.judgements=0.1 shows none of the trajectories in shown"),
    (("learner.credit.estimator=rlvmr", "env.prompt=meta", "agent.name=rollout.agents.conversation:agent"), "gets are"),
    (("learner.credit.estimator=rlvmr",), "env.prompt=memory asks for none; set env.prompt to one of meta, compact-m"),
    (("learner.judge.questions=1",), "a model made from scratch has never seen a judgement; set sft.judgements=0.1"),
    (("learner.credit.state_key=environment",), "alfworld gives no state; choose another state key"),
    (("autoscale.env=[1,4]", "env.urls=[http://a:1]"), "autoscale.env=[1, 4] scales servers that the run starts"),
    (("autoscale.rollout=[1,8]", "rollout.workers=16"),
     "rollout.workers=16 is outside autoscale.rollout=[1, 8], so the run would not start with it; set rollout.workers"),
    (("autoscale.env=[2,4]",), "env.servers=1 is outside autoscale.env=[2, 4]"),
])
def test_a_choice_that_would_do_nothing_is_refused(overrides: tuple[str, ...], expected: str):
    with pytest.raises(UserError) as error:
        preflight.check(load_config("alfworld-tiny", ("eval.episodes=8", "eval.panel=8", *overrides)))
    assert expected in str(error.value)
