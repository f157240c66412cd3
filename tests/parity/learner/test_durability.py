"""The files on disk after a learner was killed, or continued although another one had its role."""

import shutil
import threading

import pyarrow.parquet as pq
import pytest
from loop_tiny import STEPS, play, run

from learner.checkpoints.checkpoint import Checkpoints
from learner.loop import TrainingLoop
from learner.trainer import Learner
from services.errors import LeaseLost
from services.store import archive
from services.store.archive import EpisodeArchive
from services.store.step_log import StepLog
from services.store.store import Store
from services.telemetry.logs import configure_logs
from services.telemetry.metrics_file import read_rows


class Died(Exception):
    pass


@pytest.mark.parametrize(("moment", "file"), [
    ("save", "shard-00001-model-00001-of-00001.safetensors"), ("write", "model.safetensors")])
def test_a_checkpoint_waits_for_room_on_a_full_disk(redis_url, model_path, rank_group, tmp_path, monkeypatch, moment,
                                                    file):
    """A folder in the place of a file of step 2 has the effect of a full disk. The learner was started again, and
    replayed its steps."""
    store = Store(redis_url, f"full-{moment}")
    play(store, range(2 * STEPS))
    act, blocked = getattr(Learner, moment), []

    def act_while_the_disk_is_full(self, folder, *arguments):
        if not blocked:
            blocked.append(folder / file)
            blocked[0].mkdir(parents=True)
            threading.Timer(1.0, blocked[0].rmdir).start()
        return act(self, folder, *arguments)

    monkeypatch.setattr(Learner, moment, act_while_the_disk_is_full)
    learner, _, _ = run(store, tmp_path, model_path, rank_group)
    assert not blocked[0].is_dir()
    assert learner.step == STEPS
    assert Checkpoints(tmp_path / "checkpoints", 1).newest_intact().step == STEPS


def test_a_kill_right_after_a_checkpoint_loses_no_archive_file(redis_url, model_path, rank_group, tmp_path,
                                                               monkeypatch):
    """The archive writes only when it is flushed. The kill is a copy of the disk at that moment."""
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

    def commit_then_copy(self, position, digests):
        folder = commit(self, position, digests)
        shutil.copytree(tmp_path / "run", tmp_path / f"killed-{position.step}")
        return folder

    monkeypatch.setattr(archive, "_write", write_when_flushed)
    monkeypatch.setattr(EpisodeArchive, "flush", flush_all)
    monkeypatch.setattr(Checkpoints, "commit", commit_then_copy)
    (tmp_path / "run").mkdir()
    run(store, tmp_path / "run", model_path, rank_group)
    for step in (2, 4):
        names = {path.name for path in (tmp_path / f"killed-{step}" / "episodes").glob("*.parquet")}
        assert names == {f"step-{n:08d}.parquet" for n in range(1, step + 1)}
    assert {row["outcome"] for row in pq.read_table(tmp_path / "killed-4" / "episodes").to_pylist()} == {"trained"}


def state_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*")
            if path.is_file() and not any(part.startswith(".tmp") for part in path.relative_to(folder).parts)}


@pytest.mark.parametrize("moment", ["trained", "saved", "exported"])
def test_a_learner_that_lost_its_role_changes_no_file(redis_url, model_path, rank_group, tmp_path, monkeypatch, moment):
    """Another driver starts a learner while this one trains step 2, or writes the checkpoint of step 2."""
    store, other = Store(redis_url, f"orphan-{moment}"), Store(redis_url, f"orphan-{moment}")
    play(store, range(2 * STEPS))
    before, lost = [], threading.Event()
    name = {"trained": "train", "saved": "save", "exported": "write"}[moment]
    act, next_manifest = getattr(Learner, name), TrainingLoop.next_manifest

    def act_then_lose_the_role(self, *arguments, **options):
        done = act(self, *arguments, **options)
        if self.step == 2:
            other.leases.acquire("learner", "l")
            before.append(state_of(tmp_path))
            lost.set()
        return done

    def next_manifest_once_the_role_is_lost(self):
        assert self.learner.step < 2 or lost.wait(60)
        return next_manifest(self)

    monkeypatch.setattr(Learner, name, act_then_lose_the_role)
    monkeypatch.setattr(TrainingLoop, "next_manifest", next_manifest_once_the_role_is_lost)
    with pytest.raises(LeaseLost):
        run(store, tmp_path, model_path, rank_group)
    assert len(before) == 1
    assert state_of(tmp_path) == before[0]


@pytest.mark.parametrize("moment", ["draft", "commit"])
def test_a_learner_that_lost_its_role_while_the_disk_was_full_changes_no_file(
        redis_url, model_path, rank_group, tmp_path, monkeypatch, moment):
    """Another learner has begun meanwhile, in whose draft of a checkpoint there is a file. The one before it removed
    that draft, or named a checkpoint that was not there and retired its episodes."""
    store, other = Store(redis_url, f"late-{moment}"), Store(redis_url, f"late-{moment}")
    play(store, range(2 * STEPS))
    act, before, theirs = getattr(Checkpoints, moment), [], tmp_path / "checkpoints" / ".tmp-step-00000004"

    def act_once_the_disk_has_room(self, *arguments):
        if not before:
            other.leases.acquire("learner", "l")
            shutil.rmtree(tmp_path / "checkpoints" / ".tmp-step-00000002", ignore_errors=True)
            theirs.mkdir()
            (theirs / "shard").touch()
            before.append(state_of(tmp_path))
            raise OSError(28, "No space left on device")
        return act(self, *arguments)

    monkeypatch.setattr(Checkpoints, moment, act_once_the_disk_has_room)
    monkeypatch.setattr(TrainingLoop, "next_manifest", lambda self, real=TrainingLoop.next_manifest: (
        self.writing.wait() if self.learner.step == 2 else None, real(self))[1])
    with pytest.raises(LeaseLost):
        run(store, tmp_path, model_path, rank_group)
    assert state_of(tmp_path) == before[0]
    assert [file.name for file in theirs.iterdir()] == ["shard"]
    assert store.counts().retired_step == 0


@pytest.mark.parametrize("moment", ["copied", "written", "committed"])
def test_a_death_between_two_steps_of_a_checkpoint_leaves_a_whole_one(
        redis_url, model_path, rank_group, tmp_path, monkeypatch, moment):
    """The thread that writes the checkpoint of step 4 dies: with the copy in memory, before the rename, or before
    episodes are retired. The run goes on from step 2 in the first two cases, and from step 4 in the last. It finds
    its episodes in the store, and every step is archived."""
    store = Store(redis_url, f"died-{moment}")
    play(store, range(2 * STEPS))
    owner, name = {"copied": (Learner, "write"), "written": (Checkpoints, "commit"),
                   "committed": (StepLog, "retire")}[moment]
    act, calls = getattr(owner, name), []

    def act_once(self, *arguments):
        calls.append(name)
        if len(calls) == 2:
            raise Died
        return act(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, act_once)
        with pytest.raises(Died):
            run(store, tmp_path, model_path, rank_group)
    whole = Checkpoints(tmp_path / "checkpoints", 1)
    assert whole.newest_intact().step == (4 if moment == "committed" else 2)
    assert store.counts().retired_step == 2
    learner, _, _ = run(store, tmp_path, model_path, rank_group)
    assert (learner.step, whole.newest_intact().step) == (4, 4)
    assert {path.name for path in (tmp_path / "episodes").glob("*.parquet")} == {
        f"step-{n:08d}.parquet" for n in range(1, 5)}
    assert store.counts().retired_step == 4


def test_a_run_trains_on_while_its_checkpoint_is_copied_and_keeps_the_episodes(redis_url, model_path, rank_group,
                                                                               tmp_path):
    """The weights after an evaluated step waited for the object store. They are published, and what the store does not
    have yet can be replayed."""
    store, held = Store(redis_url, "copied"), []
    play(store, range(2 * STEPS))

    def mirrored():
        return STEPS if store.state.version()[0].step == STEPS else 0

    learner, published, _ = run(store, tmp_path, model_path, rank_group, mirrored=mirrored, eval={"every": 2},
                                meanwhile=lambda _: held.append(store.counts().retired_step))
    assert [version.step for version, _ in published] == [0, 1, 2, 3, 4]
    assert held == [0, 0, 0, 0]
    assert store.counts().retired_step == learner.step == STEPS


@pytest.mark.parametrize("step", [1, 2])
def test_a_run_whose_folder_leaves_and_returns_has_every_step(redis_url, model_path, rank_group, tmp_path, step):
    """The folder is away while step 2 or 3 is published: before a checkpoint and after one. A writer that made it anew
    kept the mount from coming back, and the step's lines were in the new one."""
    store, folder, aside, made = Store(redis_url, f"mount-{step}"), tmp_path / "run", tmp_path / "aside", []
    folder.mkdir()
    configure_logs(folder, process="learner-0", show=None)
    play(store, range(2 * STEPS))

    def back():
        made.extend(path.name for path in (folder.iterdir() if folder.exists() else ()))
        aside.rename(folder)

    def leaves(check):
        if store.state.version()[0].step == step:
            folder.rename(aside)
            threading.Timer(1.5, back).start()

    run(store, folder, model_path, rank_group, meanwhile=leaves)
    assert made == []
    assert not aside.exists()
    for name in ("metrics.jsonl", "ledger.jsonl"):
        assert [row["step"] for row in read_rows(folder / name)] == [1, 2, 3, 4]
    assert {path.name for path in (folder / "episodes").iterdir()} == {f"step-{n:08d}.parquet" for n in range(1, 5)}
    assert Checkpoints(folder / "checkpoints", 1).newest_intact().step == STEPS
