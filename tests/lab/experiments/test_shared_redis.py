"""An experiment deletes the folders of its runs, and with them their keys in a Redis that it shares."""

from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from deploy.runs.configs import load_config
from deploy.runs.folder import open_run
from deploy.training.child_runs import Child
from lab.experiments.credit import records
from lab.experiments.credit.design import PlannedRun
from lab.experiments.credit.progress import RunsProgress
from lab.experiments.credit.runs import Runner, RunsFailed
from services.config.redis import redis_url as redis_url_of
from services.config.tree import Config
from services.store.redis_server import private_redis
from services.store.store import Store
from services.telemetry.metrics_file import METRIC_KEYS, append_row

RUN = PlannedRun(arm="gigpo", seed=0)


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    with private_redis(tmp_path / "redis") as url:
        Store(url, "other").leases.acquire("controller", "other")
        yield url


class Finished(Child):
    """A run that has finished at once: its folder is that of a run, and its keys are in Redis."""

    def __init__(self, name: str, arguments: Sequence[str], *, log: Path, leave_s: float,
                 secrets: Mapping[str, str]) -> None:
        super().__init__(name, ["--help"], log=log, leave_s=leave_s, secrets=secrets)
        config = begun(load_config(Path(arguments[-1])), secrets)
        config.run_dir.mkdir(parents=True, exist_ok=True)
        append_row(config.run_dir / "metrics.jsonl", dict.fromkeys(METRIC_KEYS, 0.5) | {"step": 1, "version": "1.1"})
        append_row(config.run_dir / "evaluations.jsonl", {
            "label": "panel-trained", "step": 1, "split": "heldout", "temperature": 1.0, "tasks": 1, "dropped": 0,
            "episodes": 1, "success_rate": 1.0, "episode_length": 2.0, "success_by_type": {},
            "success_by_task": {"a": 1.0}})


def begun(config: Config, secrets: Mapping[str, str] | None = None) -> Config:
    """Leaves a run that has begun, with keys in Redis. `secrets`: has the password, if the config was read again."""
    _, run = open_run(config, games="g", resume=True)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (secrets or {}).items():
            patch.setenv(name, value)
        url = redis_url_of(config.redis)
    assert url is not None
    Store(url, run).leases.acquire("controller", run)
    return config


def runner(tmp_path: Path, url: str) -> Runner:
    out = tmp_path / "out"
    out.mkdir()
    config = load_config("credit-experiment", [f"runs_dir={tmp_path / 'runs'}", f"redis.url={url}"])
    common = {"cold_start": "c", "cold_evaluations": [{"label": "known"}], "panels": {"heldout": ["a"]}}
    return Runner(config=config, out=out, common=common, progress=RunsProgress(1, console=Console(file=StringIO())))


def runs_in(url: str) -> set[str]:
    """Returns the names of the runs that have keys."""
    return {key.decode().split("{")[1].split("}")[0].rpartition("-")[0] or "other"
            for key in Store(url, "any").connection.redis.scan_iter()}


def test_the_keys_of_a_run_go_with_its_folder_once_its_record_is_kept(
        tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lab.experiments.credit.runs.Child", Finished)
    made = runner(tmp_path, redis_url)
    made.make([RUN])
    assert [record.arm for record in records.read_records(made.out)] == ["gigpo"]
    assert not made._config(RUN).run_dir.exists()
    assert runs_in(redis_url) == {"other"}


def test_the_keys_of_an_interrupted_run_go_before_it_starts_anew(tmp_path: Path, redis_url: str):
    """The new run has no model to start from, and ends with that line."""
    made = runner(tmp_path, redis_url)
    begun(made._config(RUN))
    assert runs_in(redis_url) == {"gigpo-seed0", "other"}
    with pytest.raises(RunsFailed, match="gigpo-seed0"):
        made.make([RUN])
    assert runs_in(redis_url) == {"other"}
