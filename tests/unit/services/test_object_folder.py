"""A folder that cannot be used is one line that says how to fix it."""

import os
import subprocess
import sys
import time

import pytest

from services.errors import UserError
from services.object_folder import DRAFT, ObjectFolder


def test_a_folder_of_this_machine_has_no_bucket_to_check(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"storage\.url=file://.*; check that the folder is there and can be written$"):
        ObjectFolder((tmp_path / "file" / "runs").as_uri()).check()


@pytest.mark.parametrize("name", ["my runs", "läufe", "a#b", "a[b]"])
def test_a_folder_may_have_any_name(tmp_path, name):
    """`file://$PWD/shared` is an address in any folder of the user's."""
    folder = ObjectFolder(f"file://{tmp_path}/{name}")
    folder.check()
    folder.write("one", b"1")
    assert (tmp_path / name / "one").read_bytes() == b"1"


def test_a_check_leaves_no_folder_behind(tmp_path):
    """`--dry-run` checks too, and a wrong address should not become a folder."""
    ObjectFolder((tmp_path / "one" / "two").as_uri()).check()
    assert not list(tmp_path.iterdir())
    (tmp_path / "one").mkdir()
    ObjectFolder((tmp_path / "one" / "two").as_uri()).check()
    assert not list((tmp_path / "one").iterdir())


def test_a_check_refuses_a_missing_folder_where_one_has_to_be_there(tmp_path):
    """Its readers take a folder that is missing for one that is not mounted, and wait for it."""
    with pytest.raises(UserError, match=rf"^redis\.bodies=file:.* cannot be used \({tmp_path}/away is not there\)"):
        ObjectFolder((tmp_path / "away").as_uri()).check("redis.bodies", made=False)
    assert not list(tmp_path.iterdir())
    ObjectFolder(tmp_path.as_uri()).check("redis.bodies", made=False)


FULL = """
import resource, sys
from pathlib import Path
from services.object_folder import ObjectFolder
folder = ObjectFolder(Path(sys.argv[1]).as_uri())
for write in (lambda: folder.write("owner.json", bytes(200)), lambda: folder.upload([bytes(200)], "owner.json")):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    try:
        write()
    except OSError as error:
        print("refused")
"""


def test_a_full_disk_leaves_the_object_as_it_was(tmp_path):
    folder = ObjectFolder((tmp_path / "store").as_uri())
    folder.write("owner.json", b"here")
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path / "store"], capture_output=True, text=True,
                          timeout=100, check=True)
    assert done.stdout == "refused\nrefused\n"
    assert folder.read("owner.json") == b"here"
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["owner.json"]


def test_the_draft_of_a_killed_writer_is_deleted_once_nobody_has_written_to_it_for_an_hour(tmp_path):
    folder = ObjectFolder(tmp_path.as_uri())
    folder.write("checkpoints/latest.json", b"{}")
    left, young = (tmp_path / "checkpoints" / f".{name}{DRAFT}" for name in ("left", "young"))
    for draft in (left, young):
        draft.write_bytes(b"half")
    os.utime(left, (time.time() - 7200,) * 2)
    folder.delete_abandoned()
    assert (left.exists(), young.exists()) == (False, True)
    assert folder.sizes() == {"checkpoints/latest.json": 2}


def test_an_object_that_is_being_written_is_not_there_yet(tmp_path):
    folder = ObjectFolder(tmp_path.as_uri())
    with folder._writing("checkpoints/latest.json") as stream:
        stream.write(b"{")
        assert folder.sizes() == {}
        assert folder.read("checkpoints/latest.json") is None
    assert folder.sizes() == {"checkpoints/latest.json": 1}
