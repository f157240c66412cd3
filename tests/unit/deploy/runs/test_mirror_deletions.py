"""The copy of a run loses what its folder no longer has, and nothing else."""

import shutil

import pytest
from mirrored_run import a_run, commit, config, stored

from deploy.runs.mirror import Mirror, claim
from learner.checkpoints.checkpoint import mirrored_step
from services.object_folder import ObjectFolder


def a_model(folder):
    (folder / "model").mkdir()
    for name in ("sft.json", "model.safetensors"):
        (folder / "model" / name).write_text("{}")
    return folder / "model"


def test_a_folder_that_goes_away_during_a_copy_takes_no_checkpoint_along(tmp_path, monkeypatch):
    """A shared folder may be away at any moment, and lists nothing then."""
    folder, write = a_run(config(tmp_path)), ObjectFolder.write
    a_model(folder)
    commit(folder, 1)

    def goes_away(self, name, data):
        write(self, name, data)
        if name == "checkpoints/latest.json":
            folder.rename(tmp_path / "away")

    monkeypatch.setattr(ObjectFolder, "write", goes_away)
    with pytest.raises(FileNotFoundError):
        Mirror(config(tmp_path)).push()
    assert {"checkpoints/step-00000001/meta.json", "model/sft.json"} <= stored(tmp_path)


def test_checkpoints_that_the_folder_no_longer_has_are_deleted(tmp_path):
    folder = a_run(config(tmp_path))
    mirror = Mirror(config(tmp_path))
    for step in (1, 2, 3):
        commit(folder, step)
        mirror.push()
    steps = {name.split("/")[1] for name in stored(tmp_path) if "step-" in name}
    assert steps == {"step-00000002", "step-00000003"}


def test_models_of_a_shorter_run_are_deleted(tmp_path):
    """A machine that fetches the run would take them for those of the longer one."""
    folder = a_run(config(tmp_path))
    mirror, model = Mirror(config(tmp_path)), a_model(folder)
    mirror.push()
    assert {"model/sft.json", "model/model.safetensors"} <= stored(tmp_path)
    shutil.rmtree(model)  # as a start with more steps does
    mirror.push()
    assert [name for name in stored(tmp_path) if name.startswith("model")] == []


def test_the_summary_of_a_shorter_run_is_deleted(tmp_path):
    """By it a sweep takes a run for finished, and so does the explorer."""
    folder = a_run(config(tmp_path))
    (folder / "summary.json").write_text("{}")
    mirror = Mirror(config(tmp_path))
    mirror.push()
    assert "summary.json" in stored(tmp_path)
    (folder / "summary.json").unlink()  # as a start with more steps does
    mirror.push()
    assert "summary.json" not in stored(tmp_path)


@pytest.mark.parametrize("lost", [".", "run.json", "checkpoints/step-00000001/hf/model"])
def test_files_that_the_store_has_lost_are_sent_again_by_the_next_start(tmp_path, lost):
    """A bucket that was made anew, or a rule that deletes old objects: the record in the folder still names them."""
    folder = a_run(config(tmp_path))
    commit(folder, 1)
    Mirror(config(tmp_path)).push()
    before, place = stored(tmp_path), tmp_path / "store" / "mine" / lost
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    claim(config(tmp_path), resume=True)
    assert mirrored_step(folder) == 0, "what is lost cannot be relied on"
    Mirror(config(tmp_path)).push()
    assert stored(tmp_path) == before
    assert mirrored_step(folder) == 1
