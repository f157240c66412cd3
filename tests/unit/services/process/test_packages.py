"""All our packages from one installation."""

import subprocess
import sys
from pathlib import Path

from services.process.packages import OURS, check_one_installation, import_folder, installation_root


def test_all_our_packages_come_from_one_installation():
    check_one_installation()
    assert {import_folder(name) for name in OURS} == {installation_root()}


def test_a_folder_that_shadows_one_of_ours_is_named(tmp_path: Path):
    (tmp_path / "rollout").mkdir()
    (tmp_path / "rollout" / "__init__.py").touch()
    code = "from services.process.packages import check_one_installation as check; check()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"package rollout comes from {tmp_path}" in done.stderr
    assert f"rename or remove {tmp_path / 'rollout'}" in done.stderr
