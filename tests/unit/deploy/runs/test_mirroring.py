"""When the copying to an object store goes on, and when it ends the run. The store is a folder."""

import time

import pytest

from deploy.runs.configs import default_config
from deploy.runs.mirror import Mirroring, claim
from services.errors import DeadlineExceeded
from services.object_folder import ObjectFolder

UPLOAD = ObjectFolder.upload


@pytest.fixture
def config(tmp_path):
    """Provides the config of a run with a folder, whose copying gives up after one second."""
    made = default_config(["name=mine", f"runs_dir={tmp_path / 'here'}", "storage.outage_seconds=1",
                           f"storage.url={(tmp_path / 'store').as_uri()}"])
    made.run_dir.mkdir(parents=True)
    claim(made, resume=False)
    (made.run_dir / "run.json").write_text("{}")
    (made.run_dir / "metrics.jsonl").write_text("one\n")
    return made


def copied(config, name):
    return (ObjectFolder(f"{config.storage.url}/mine").read(name) or b"").decode()


def until(holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_failure_after_a_long_upload_is_tried_again(config, monkeypatch):
    """The time of an upload that goes well is no failure."""
    failed = []

    def fails_late(self, pieces, name):
        if not failed:
            failed.append(name)
            time.sleep(1.2)
            raise OSError("reset")
        UPLOAD(self, pieces, name)

    monkeypatch.setattr(ObjectFolder, "upload", fails_late)
    with Mirroring(config, note=lambda _: None):
        pass
    assert copied(config, "run.json") == "{}"


def test_a_store_that_takes_some_files_in_each_attempt_ends_no_run(config, monkeypatch):
    failed = set()

    def fails_once_for_each(self, pieces, name):
        if name not in failed:
            failed.add(name)
            raise OSError("reset")
        UPLOAD(self, pieces, name)

    monkeypatch.setattr(ObjectFolder, "upload", fails_once_for_each)
    notes = []
    with Mirroring(config, note=notes.append):
        pass
    assert copied(config, "run.json") == "{}"
    assert len(notes) == 2, "run.json is sent after the others, in the second attempt"


def test_a_file_that_is_never_taken_ends_the_run_although_others_are(config, monkeypatch):
    def refuses_one(self, pieces, name):
        if name == "run.json":
            raise OSError("too large")
        UPLOAD(self, pieces, name)

    def note(_):
        with (config.run_dir / "metrics.jsonl").open("a") as file:
            file.write("one more\n")

    monkeypatch.setattr(ObjectFolder, "upload", refuses_one)
    with (pytest.raises(DeadlineExceeded, match=r"has failed for \d+ s \(too large; storage.outage_seconds\)"),
          Mirroring(config, note=note)):
        pass
    assert "one more" in copied(config, "metrics.jsonl")


@pytest.mark.parametrize("name", ["wanted.json", "checkpoints/best.json"])
def test_a_folder_that_is_away_is_no_fault_of_the_store(config, name):
    """A link to itself cannot be read, as a file of a shared folder that is away."""
    file, notes = config.run_dir / name, []
    file.unlink(missing_ok=True)
    file.parent.mkdir(exist_ok=True)
    file.symlink_to(file)
    with Mirroring(config, note=notes.append) as mirroring:
        time.sleep(3)  # longer than storage.outage_seconds
        mirroring.check()
        file.unlink()
        until(lambda: copied(config, "run.json"))
        mirroring.check()
    assert notes
    assert all(note.startswith(f"warning: {config.run_dir} could not be read or written") for note in notes)


def test_a_folder_that_stays_away_ends_the_run_with_its_name(config):
    sign = config.run_dir / "wanted.json"
    sign.symlink_to(sign)
    impatient = config.model_copy(update={"learner": config.learner.model_copy(update={"collective_s": 1.0})})
    told = rf"^{config.run_dir} could not be read or written for \d+ s \(.*wanted.json'; learner.collective_s\)$"
    with pytest.raises(DeadlineExceeded, match=told), Mirroring(impatient, note=lambda _: None):
        pass
