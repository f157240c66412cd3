"""The numbers of processes while a run goes on."""

from pathlib import Path
from typing import Any, cast

from scripted_member import Scripted

from deploy.launch.scaling import LOOK_S, Scaling
from deploy.launch.topology import Topology
from deploy.runs.configs import default_config
from deploy.runs.folder import RunFolder
from deploy.runs.wanted import WantedNumbers, write_wanted
from services.controller.supervise import Supervisor

NONE = cast(Any, None)


def test_the_wanted_numbers_hold_while_their_file_cannot_be_read(tmp_path: Path):
    """A link to itself cannot be read, as a file of a shared folder that is away. No process needs the store here."""
    config, now, notes = default_config(["rollout.workers=1"]), [0.0], list[str]()
    parts = Topology(config=config, run="r", folder=tmp_path, store=NONE, store_url="", given_urls=lambda: (),
                     weights=None, weights_name="", supervisor=Supervisor(notes.append, config.supervision))
    scaling = Scaling(parts, NONE, lambda index: Scripted(f"rollout worker {index}", []), note=notes.append,
                      clock=lambda: now[0])
    file = RunFolder(tmp_path).wanted

    def wanted() -> int:
        now[0] += 2 * LOOK_S
        scaling.tick()
        return scaling.workers.wanted

    write_wanted(RunFolder(tmp_path), WantedNumbers(rollout=3))
    scaling.start()
    assert wanted() == 3
    file.unlink()
    file.symlink_to(file)
    assert [wanted(), wanted()] == [3, 3]
    file.unlink()
    write_wanted(RunFolder(tmp_path), WantedNumbers(rollout=2))
    assert wanted() == 2
