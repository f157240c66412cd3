"""The copy of a run in a real object store, with the mistakes of an operator and the failures of a network."""

import errno
import os
import threading

import pytest
from object_store import BUCKET, GOOGLE_BUCKET, google_store, object_store

from deploy.runs.configs import default_config
from deploy.runs.mirror import Mirror, Mirroring, claim
from learner.checkpoints.checkpoint import Checkpoints, Position
from services.errors import DeadlineExceeded, UserError
from services.object_folder import HEAD_PIECES, ObjectFolder

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def store():
    with object_store() as started:
        yield started


@pytest.fixture(scope="module")
def google(tmp_path_factory):
    with google_store(tmp_path_factory.mktemp("google")) as started:
        yield started


def started(tmp_path, name, *, bucket=BUCKET, **settings):
    """Returns the config of a run whose folder is as its start leaves it."""
    overrides = [f"storage.{key}={value}" for key, value in settings.items()]
    config = default_config([f"name={name}", f"runs_dir={tmp_path}", f"storage.url={bucket}/runs", *overrides])
    config.run_dir.mkdir(parents=True, exist_ok=True)
    claim(config, resume=False)
    (config.run_dir / "run.json").write_text("{}")
    return config


def commit(config, step, data):
    checkpoints = Checkpoints(config.run_dir / "checkpoints", keep=2)
    (checkpoints.draft(step) / "weights").write_bytes(data)
    checkpoints.commit(Position(step=step, incarnation=1, next_group=step, trained=step))


@pytest.mark.parametrize(("server", "bucket"), [("store", BUCKET), ("google", GOOGLE_BUCKET)])
def test_a_checkpoint_of_many_parts_comes_back_to_the_bit(request, tmp_path, server, bucket):
    request.getfixturevalue(server)
    config = started(tmp_path / "here", "large", bucket=bucket)
    data = os.urandom(40 << 20)  # more than one part of an upload
    commit(config, 1, data)
    Mirror(config).push()
    there = default_config(["name=large", f"runs_dir={tmp_path / 'there'}", f"storage.url={bucket}/runs"])
    there.run_dir.mkdir(parents=True)
    claim(there, resume=True)
    checkpoints = Checkpoints(there.run_dir / "checkpoints", keep=2)
    assert checkpoints.newest_intact().step == 1
    assert (checkpoints.folder(1) / "weights").read_bytes() == data


@pytest.mark.parametrize(("server", "bucket"), [("store", BUCKET), ("google", GOOGLE_BUCKET)])
@pytest.mark.parametrize("good", [0, 1, HEAD_PIECES])
def test_a_disk_that_fails_leaves_no_object_cut_short(request, server, bucket, good):
    """The run's copy lost its metrics to a disk that could not be read: the store took what came for the whole."""
    request.getfixturevalue(server)

    def pieces():
        for _ in range(good):
            yield b"new"
        raise OSError(errno.EIO, "Input/output error")

    folder = ObjectFolder(f"{bucket}/cut-{good}")
    folder.write("metrics.jsonl", b"old")
    with pytest.raises(OSError, match="Input/output error"):
        folder.upload(pieces(), "metrics.jsonl")
    assert folder.read("metrics.jsonl") == (b"old" if good < HEAD_PIECES else None)


def test_a_wrong_bucket_and_a_missing_server_are_one_line(store, monkeypatch):
    ObjectFolder(f"{BUCKET}/runs").check()
    assert ObjectFolder(f"{BUCKET}/runs").sizes(".gagpo") == {}
    with pytest.raises(UserError, match=r"storage\.url=s3://nowhere/runs cannot be used \(AWS Error NO_SUCH_BUCKET"):
        ObjectFolder("s3://nowhere/runs").check()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"AWS Error NETWORK_CONNECTION.*; check the bucket, and the credentials"):
        ObjectFolder(f"{BUCKET}/runs").check()


def test_a_wrong_bucket_of_google_s_is_one_line(google):
    ObjectFolder(f"{GOOGLE_BUCKET}/runs").check()
    assert ObjectFolder(f"{GOOGLE_BUCKET}/runs").sizes(".gagpo") == {}
    assert ObjectFolder(f"{GOOGLE_BUCKET}/runs").read("none") is None
    with pytest.raises(UserError, match=r"gs://nowhere/runs cannot be used \(google::cloud::Status\(NOT_FOUND"):
        ObjectFolder("gs://nowhere/runs").check()


def test_the_run_waits_for_a_store_that_fails_and_sends_all_when_it_answers(store, tmp_path, monkeypatch):
    config, notes, failed = started(tmp_path, "patient"), [], threading.Event()
    upload = ObjectFolder.upload

    def fails_at_first(self, pieces, name):
        if not failed.is_set():
            failed.set()
            raise OSError("AWS Error SLOW_DOWN")
        upload(self, pieces, name)

    monkeypatch.setattr(ObjectFolder, "upload", fails_at_first)
    with Mirroring(config, note=notes.append) as mirroring:
        assert failed.wait(60)
        mirroring.check()
    assert [note.partition(";")[0] for note in notes] == [
        f"warning: {BUCKET}/runs does not take the run's files (AWS Error SLOW_DOWN)"]
    assert ObjectFolder(f"{BUCKET}/runs/patient").read("run.json") == b"{}"


def test_a_store_that_stays_away_ends_the_run_with_its_name(store, tmp_path, monkeypatch):
    config = started(tmp_path, "away", outage_seconds=1)

    def fails(*_):
        raise OSError("AWS Error SLOW_DOWN")

    def run():
        with Mirroring(config, note=lambda _: None):
            pass

    monkeypatch.setattr(ObjectFolder, "upload", fails)
    with pytest.raises(DeadlineExceeded, match=r"s3://gagpo/runs has failed for .*SLOW_DOWN; storage\.outage_seconds"):
        run()
