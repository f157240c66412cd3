"""A folder that cannot be used is one line that says how to fix it."""

import pytest

from services.errors import UserError
from services.object_folder import ObjectFolder


def test_a_folder_of_this_machine_has_no_bucket_to_check(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"storage\.url=file://.*; check that the folder is there and can be written$"):
        ObjectFolder((tmp_path / "file" / "runs").as_uri()).check()
