"""A folder that cannot be used is one line that says how to fix it."""

import pytest

from services.errors import UserError
from services.object_folder import ObjectFolder


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
