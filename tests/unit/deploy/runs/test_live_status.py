"""The processes of a run as its driver's real endpoint tells of them, or says why it cannot."""

from __future__ import annotations

import json
import re

import pytest

from deploy import cli
from deploy.launch.monitoring import target_groups
from deploy.runs.configs import load_config
from deploy.runs.folder import RunFolder
from deploy.runs.stage import StageRecord
from services.config.file import dump_config
from services.errors import StoreFault
from services.telemetry.exposition import serving
from services.telemetry.heartbeat import Beat

MISCONF = "beats: MISCONF Errors writing to the AOF file: No space left on device; give Redis the disk that it lacks"


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path / "runs/a")
    folder.path.mkdir(parents=True)
    dump_config(load_config("alfworld-tiny", ()), folder.config_file)
    (folder.path / "run.json").write_text("{}")
    return folder


def test_the_reason_for_which_a_driver_cannot_read_the_heartbeats_is_shown(folder, capsys):
    """It was told as one that does not answer, while the disk behind its Redis was full."""
    def refused() -> dict[str, Beat]:
        raise StoreFault(f"{MISCONF}\nwith more lines")

    with StageRecord(folder.stage_file), serving(refused, host="127.0.0.1", port=0) as address:
        folder.targets.parent.mkdir(parents=True)
        folder.targets.write_text(json.dumps(target_groups("a", address, ["http://127.0.0.1:1"])))
        assert cli.main(["status", str(folder.path)]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"^  driver  .* cannot read the heartbeats: {MISCONF}$", shown, re.MULTILINE)
    assert re.search(r"^  env 127\.0\.0\.1:1 .* does not answer$", shown, re.MULTILINE)
    assert "tickets wait" not in shown
