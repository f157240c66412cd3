"""An evaluation needs room for its rollout workers alone, and for no learner."""

from pathlib import Path

import pytest

from deploy.launch.checks import preflight
from deploy.launch.planning import gpu_pool
from deploy.launch.planning.fit import evaluation_config
from deploy.launch.planning.gpu_pool import GpuPool
from deploy.runs.configs import load_config
from services.config.tree import Config
from services.errors import UserError

pytestmark = pytest.mark.usefixtures("two_cpus")


def checked(config: Config) -> tuple[Config, list[str]]:
    """Returns the config of the evaluation, which the checks let pass, and what the user is told."""
    told = list[str]()
    played = evaluation_config(config, told.append)
    preflight.check_parts(played, learner=False)
    return played, told


@pytest.mark.parametrize("learner", [
    "learner.cpus=16", "learner.ranks=64", "learner.gpus=1", "learner.threads=32", "learner.token_budget=100000000"])
def test_a_learner_that_has_no_room_here_does_not_matter(learner: str):
    config = load_config("alfworld-tiny", [learner])
    with pytest.raises(UserError):
        preflight.check_parts(config)
    assert checked(config)[1] == []


def test_a_run_of_eight_gpus_is_played_on_one(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu_pool, "visible", lambda: GpuPool(1, 80 * 10**9))
    monkeypatch.setattr(preflight, "check_builds", lambda _: None)  # this machine has the builds for CPUs
    keys = [f"model.path={models['1.5b']}", "rollout.workers=8", "learner.ranks=8", "rollout.sleep=true",
            "rollout.cpus=0.5", "autoscale.rollout=[4,8]"]
    played, told = checked(load_config("alfworld-1.5b", keys))
    assert (played.rollout.workers, played.rollout.gpus, played.autoscale.rollout) == (1, 1, None)
    assert told == ["playing with rollout.workers=1 instead of 8: this machine has no room for more"]


def test_workers_that_fit_are_kept():
    played, told = checked(load_config("alfworld-tiny", ["rollout.workers=2"]))
    assert (played.rollout.workers, told) == (2, [])
    assert checked(load_config("alfworld-tiny", ["rollout.workers=9"]))[0].rollout.workers == 2


def test_a_machine_without_room_for_one_worker_is_refused():
    with pytest.raises(UserError, match="the plan reserves 4 CPUs, and this machine has 2"):
        checked(load_config("alfworld-tiny", ["rollout.cpus=4", "rollout.workers=3"]))


def test_a_cluster_is_left_to_its_scheduler():
    config = load_config("alfworld-tiny", ["rollout.workers=9", "ray.address=10.0.0.1:6379"])
    played = evaluation_config(config, pytest.fail)
    assert played.rollout.workers == 9
