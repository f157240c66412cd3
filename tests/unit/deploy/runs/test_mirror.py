import json
import subprocess
import sys
from pathlib import Path

import pytest
from mirrored_run import a_run, commit, config, stored

from deploy.runs import mirror as module
from deploy.runs.configs import default_config
from deploy.runs.folder import check_folder
from deploy.runs.mirror import OWNER, Mirror, claim, config_at
from learner.checkpoints.checkpoint import MIRROR, Checkpoints, MirrorState, mirrored_step
from rollout.engine.weights_file import MARK
from services.errors import LeaseLost, UserError
from services.files import Damaged, open_plain, read_json
from services.object_folder import ObjectFolder, StoreAway


@pytest.fixture
def elsewhere(tmp_path):
    """The same run on a node that has nothing of it."""
    there = config(tmp_path, "there")
    there.run_dir.mkdir(parents=True)
    return there


def test_a_run_is_fetched_whole_where_its_folder_is_gone(tmp_path, elsewhere):
    folder = a_run(config(tmp_path))
    (folder / "episodes" / "step-00000003.parquet").write_text("rows")
    (folder / "model-cold-start").mkdir()
    (folder / "model-cold-start" / "sft.json").write_text("{}")
    commit(folder, 3)
    Mirror(config(tmp_path)).push()
    claim(elsewhere, resume=True)
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    fetched = {name: (elsewhere.run_dir / name).read_bytes() for name in files if name != MIRROR}
    assert fetched == {name: data for name, data in files.items() if name != MIRROR}
    assert Checkpoints(elsewhere.run_dir / "checkpoints", keep=2).newest_intact().step == 3
    assert read_json(elsewhere.run_dir / MIRROR, MirrorState).step == 3


def test_weights_without_a_checkpoint_are_copied_whole_or_not_at_all(tmp_path, elsewhere):
    folder = a_run(config(tmp_path))
    commit(folder, 2, alone=True)
    Checkpoints(folder / "checkpoints", keep=2).record_score(2, 0.5)
    commit(folder, 3, alone=True)
    Mirror(config(tmp_path)).push()
    (tmp_path / "store" / "mine" / "checkpoints" / "weights-00000003" / "meta.json").unlink()
    claim(elsewhere, resume=True)
    there = Checkpoints(elsewhere.run_dir / "checkpoints", keep=2)
    assert (there.weights_steps(), there.best(), there.latest()) == ([2], 2, None)
    there.check_weights(2)


def test_files_of_the_machine_are_not_copied(tmp_path):
    folder = a_run(config(tmp_path))
    for name in (".lock", f"{MARK}0-digest", "log.jsonl", "logs/10.0.0.2.jsonl", "stage.json", "redis/dump",
                 "episodes/half.tmp", ".explorer/index", "checkpoints/.tmp-step-00000009/x",
                 "checkpoints/damaged-step-00000001/x"):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text("x")
    Mirror(config(tmp_path)).push()
    assert stored(tmp_path) == {OWNER, "run.json", "config.yaml", "metrics.jsonl"}


def test_only_what_has_changed_is_sent_again(tmp_path, monkeypatch):
    folder, sent = a_run(config(tmp_path)), []
    commit(folder, 1)
    mirror = Mirror(config(tmp_path))
    mirror.push()
    upload = ObjectFolder.upload
    monkeypatch.setattr(ObjectFolder, "upload", lambda self, data, name: sent.append(name) or upload(self, data, name))
    mirror.push()
    Mirror(config(tmp_path)).push()  # a later process reads what was sent from mirror.json
    assert sent == []
    (folder / "metrics.jsonl").write_text("one\ntwo\n")
    commit(folder, 2)
    mirror.push()
    assert sent == ["metrics.jsonl", "checkpoints/step-00000002/hf/model", "checkpoints/step-00000002/meta.json"]


def test_a_checkpoint_that_is_made_again_is_hidden_until_it_is_whole(tmp_path, elsewhere, monkeypatch):
    folder = a_run(config(tmp_path))
    commit(folder, 1)
    commit(folder, 2, "old weights")
    mirror = Mirror(config(tmp_path))
    mirror.push()
    commit(folder, 2, "newer weights")

    def fails(self, pieces, name):
        raise OSError("the network is gone")

    with monkeypatch.context() as patch:
        patch.setattr(ObjectFolder, "upload", fails)
        with pytest.raises(StoreAway, match="the network is gone"):
            mirror.push()
    claim(elsewhere, resume=True)
    assert Checkpoints(elsewhere.run_dir / "checkpoints", keep=2).newest_intact().step == 1


def test_a_file_that_cannot_be_read_to_its_end_is_no_fault_of_the_store(tmp_path, monkeypatch):
    """The first byte of a process's memory cannot be read, as a block of a disk that fails."""
    a_run(config(tmp_path))
    mirror = Mirror(config(tmp_path))
    monkeypatch.setattr(module, "open_plain", lambda _: open_plain("/proc/self/mem"))
    with pytest.raises(OSError, match="Input/output error"):
        mirror.push()
    assert (mirror.failing, stored(tmp_path)) == ({}, {OWNER})


def test_the_driver_that_fetches_a_run_becomes_its_owner(tmp_path, elsewhere):
    folder = a_run(config(tmp_path))
    commit(folder, 1)
    mirror = Mirror(config(tmp_path))
    mirror.push()
    claim(elsewhere, resume=True)
    commit(folder, 2)
    with pytest.raises(LeaseLost, match="another copy of this run continues"):
        mirror.push()
    assert read_json(folder / MIRROR, MirrorState).step == 1
    with pytest.raises(UserError, match="is not the newest copy of the run"):
        claim(config(tmp_path), resume=True)
    claim(elsewhere, resume=True)  # its owner may start again


def test_a_new_run_does_not_take_the_place_of_another(tmp_path, elsewhere):
    a_run(config(tmp_path))
    Mirror(config(tmp_path)).push()
    with pytest.raises(UserError, match=r"holds a run already; give --resume"):
        claim(elsewhere, resume=False)


FULL = """
import resource, sys
from pathlib import Path
from deploy.runs.configs import default_config
from deploy.runs.mirror import claim
config = default_config([f"runs_dir={sys.argv[1]}", "name=mine", f"storage.url={sys.argv[2]}"])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    claim(config, resume=True)
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


def test_a_full_disk_during_a_fetch_is_not_told_as_a_fault_of_the_object_store(tmp_path, elsewhere):
    folder = a_run(config(tmp_path))
    (folder / "ledger.jsonl").write_text("{}\n" * 1000)
    Mirror(config(tmp_path)).push()
    words = [sys.executable, "-c", FULL, tmp_path / "there", (tmp_path / "store").as_uri()]
    told = subprocess.run(words, capture_output=True, text=True, timeout=100, check=True).stdout
    assert told == f"UserError: {elsewhere.run_dir} cannot be written (File too large); make room there, and --resume\n"


def test_an_interrupted_fetch_begins_again(tmp_path, elsewhere):
    a_run(config(tmp_path))
    Mirror(config(tmp_path)).push()
    (elsewhere.run_dir / ".fetching").mkdir()
    (elsewhere.run_dir / ".fetching" / "run.json").write_text("half")
    check_folder(elsewhere.run_dir)
    claim(elsewhere, resume=True)
    assert json.loads((elsewhere.run_dir / "run.json").read_text()) == {"run": "mine-1"}


def test_a_fetch_that_ends_between_two_renames_begins_again(tmp_path, elsewhere, monkeypatch):
    commit(a_run(config(tmp_path)), 1)
    Mirror(config(tmp_path)).push()
    rename = Path.rename

    def ends(self, target):
        if self.name == "run.json" and self.parent.name == ".fetching":
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", ends)
        with pytest.raises(KeyboardInterrupt):
            claim(elsewhere, resume=True)
    check_folder(elsewhere.run_dir)
    claim(elsewhere, resume=True)
    assert Checkpoints(elsewhere.run_dir / "checkpoints", keep=2).newest_intact().step == 1
    assert not (elsewhere.run_dir / ".fetching").exists()


def test_a_fetch_that_ends_before_the_object_store_knows_its_owner_begins_again(tmp_path, elsewhere, monkeypatch):
    a_run(config(tmp_path))
    Mirror(config(tmp_path)).push()

    def ends(self, name, data):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ObjectFolder, "write", ends)
        with pytest.raises(KeyboardInterrupt):
            claim(elsewhere, resume=True)
    claim(elsewhere, resume=True)
    assert json.loads((elsewhere.run_dir / "run.json").read_text()) == {"run": "mine-1"}


def test_a_name_that_would_leave_the_folder_is_refused(tmp_path, monkeypatch):
    from pyarrow import fs

    class Bucket:
        type_name = "s3"

        def get_file_info(self, selector):
            return [fs.FileInfo("bucket/mine/../../evil", type=fs.FileType.File, size=1)]

    there = ObjectFolder("s3://bucket/mine")
    monkeypatch.setattr(ObjectFolder, "_opened", (Bucket(), "bucket/mine"))
    with pytest.raises(Damaged, match=r"'\.\./\.\./evil'"):
        there.sizes()


def test_a_run_that_is_not_there_is_said_in_one_line(tmp_path):
    with pytest.raises(UserError, match="there is no run at"):
        config_at((tmp_path / "store" / "nobody").as_uri())


@pytest.mark.parametrize("url", ["bucket/runs", "http://bucket/runs", "s3://", "s3://key:secret@bucket/runs",
                                 "s3://bucket/runs?secret_key=1"])
def test_an_address_that_is_none_or_holds_a_secret_is_refused(url):
    for key in ("storage.url", "redis.bodies"):
        with pytest.raises(UserError, match=key):
            default_config([f"{key}={url}"])


def test_the_learner_knows_which_checkpoint_is_in_the_object_store(tmp_path):
    folder = a_run(config(tmp_path))
    commit(folder, 1)
    assert mirrored_step(folder) == 0
    Mirror(config(tmp_path)).push()
    commit(folder, 2)
    assert mirrored_step(folder) == 1


def test_nothing_is_known_to_be_in_the_object_store_while_the_folder_is_away(tmp_path):
    folder = a_run(config(tmp_path))
    commit(folder, 1)
    Mirror(config(tmp_path)).push()
    folder.rename(tmp_path / "away")
    assert mirrored_step(folder) == 0
    (tmp_path / "away").rename(folder)
    assert mirrored_step(folder) == 1
