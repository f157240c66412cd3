"""The files on disk after a learner was killed, or continued although another one had its role."""

import shutil

import pyarrow.parquet as pq
import pytest
from loop_tiny import STEPS, play, run

from learner.checkpoint import Checkpoints
from learner.trainer import Learner
from services.errors import LeaseLost
from services.store import archive
from services.store.archive import EpisodeArchive
from services.store.store import Store


def test_a_kill_right_after_a_checkpoint_loses_no_archive_file(redis_url, model_path, gang, tmp_path, monkeypatch):
    """The archive writes as late as it may: only when it is flushed. The kill is a copy of the disk at that moment."""
    store, flushed = Store(redis_url, "archived"), []
    play(store, range(2 * STEPS))
    write, flush, commit = archive._write, EpisodeArchive.flush, Checkpoints.commit
    waiting = []

    def write_when_flushed(*job):
        waiting.append(job)

    def flush_all(self, *arguments):
        flush(self, *arguments)
        flushed.append(len(waiting))
        while waiting:
            write(*waiting.pop(0))

    def commit_then_copy(self, position, fill):
        commit(self, position, fill)
        shutil.copytree(tmp_path / "run", tmp_path / f"killed-{position.step}")

    monkeypatch.setattr(archive, "_write", write_when_flushed)
    monkeypatch.setattr(EpisodeArchive, "flush", flush_all)
    monkeypatch.setattr(Checkpoints, "commit", commit_then_copy)
    (tmp_path / "run").mkdir()
    run(store, tmp_path / "run", model_path, gang)
    for step in (2, 4):
        names = {path.name for path in (tmp_path / f"killed-{step}" / "episodes").glob("*.parquet")}
        assert names == {f"step-{n:08d}.parquet" for n in range(1, step + 1)}
    assert {row["outcome"] for row in pq.read_table(tmp_path / "killed-4" / "episodes").to_pylist()} == {"trained"}


def state_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*")
            if path.is_file() and not any(part.startswith(".tmp") for part in path.relative_to(folder).parts)}


@pytest.mark.parametrize("moment", ["trained", "saved", "exported"])
def test_a_learner_that_lost_its_role_changes_no_file(redis_url, model_path, gang, tmp_path, monkeypatch, moment):
    """Another driver starts another learner while this one trains step 2, or writes the checkpoint of step 2."""
    store, other = Store(redis_url, f"orphan-{moment}"), Store(redis_url, f"orphan-{moment}")
    play(store, range(2 * STEPS))
    before = []
    name = {"trained": "train", "saved": "save", "exported": "export"}[moment]
    act = getattr(Learner, name)

    def act_then_lose_the_role(self, *arguments):
        done = act(self, *arguments)
        if self.step == 2:
            other.acquire("learner", "l")
            before.append(state_of(tmp_path))
        return done

    monkeypatch.setattr(Learner, name, act_then_lose_the_role)
    with pytest.raises(LeaseLost):
        run(store, tmp_path, model_path, gang)
    assert len(before) == 1
    assert state_of(tmp_path) == before[0]
