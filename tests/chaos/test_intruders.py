"""A private run under the eyes of an intruder: its secrets, its ports, and what its folder brings to a resume.

The first life is watched. Then pickles are put into the folder, wherever PyTorch would look for some, with digests that
fit; the second life goes on from that folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from canaries import Watch, files_with, plant_pickles, private_secrets

from services.store.redis_server import find_redis

pytestmark = [pytest.mark.long, pytest.mark.attack, pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(1800)]

LIFE_S = 600.0
TINY = (
    "--config", "alfworld-tiny", "env.max_steps=4", "model.layers=1", "model.intermediate=64", "sft.demos_per_game=1",
    "sft.minutes=0.05", "rollout.slots=4", "rollout.kv_cache_gb=0.25", "learner.groups_per_step=2",
    "learner.group_size=2", "learner.threads=1", "eval.every=0", "eval.panel=0", "eval.compare_cold_start=false",
)


@dataclass(frozen=True, kw_only=True)
class Watched:
    """The first life of a run, and where its traces are."""

    folder: Path
    traces: list[Path]
    """Everything that the run wrote: its folder, its temporary files, what it printed."""
    secrets: dict[str, str]
    watch: Watch


@pytest.fixture(scope="module")
def watched(train, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("runs") / "private"
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as temporary:  # short, because sockets are in it
        run = train(folder, *TINY, "steps=1", f"runs_dir={folder.parent}", "name=private", temporary=Path(temporary))
        found: list[tuple[dict[str, str], int]] = []

        def secrets_exist() -> bool:
            found.extend(filter(None, [private_secrets(run.process.pid, folder)]))
            return bool(found)

        run.wait_for("its secrets", secrets_exist, LIFE_S)
        watch = Watch(run.process.pid, *found[0])
        watch.start()
        status = run.end(LIFE_S)
        watch.end()
        assert status == 0, run.tail()
        yield Watched(folder=folder, traces=[folder, Path(temporary), run.log.parent], secrets=found[0][0], watch=watch)


def test_a_private_run_shows_none_of_its_own_secrets_and_leaves_none(watched: Watched):
    assert len(set(watched.secrets.values())) == 3
    assert {find_redis().name, "gcs_server", "raylet"} <= watched.watch.names
    assert watched.watch.found == set()
    found, count = files_with(watched.secrets, watched.traces)
    assert count > 20
    assert found == set()


def test_a_private_run_listens_on_loopback_alone(watched: Watched):
    assert watched.watch.listening == {"127.0.0.1"}


def test_a_resume_runs_no_code_that_the_folder_brings(train, watched: Watched, tmp_path: Path):
    assert plant_pickles(watched.folder, tmp_path / "code-ran") > 5
    again = train(watched.folder, "--resume", str(watched.folder), "steps=2")
    assert again.end(LIFE_S) == 0, again.tail()
    assert again.steps == [1, 2]
    said = again.log.read_text() + (watched.folder / "log.jsonl").read_text()
    assert "is renamed" not in said, "the checkpoint with the pickles was not the one that was loaded"
    assert not (tmp_path / "code-ran").exists()
