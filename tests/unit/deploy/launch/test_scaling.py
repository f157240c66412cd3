"""The numbers of processes while a run goes on."""

import os
import socket
from itertools import count
from pathlib import Path
from typing import Any, cast

from scripted_member import Scripted

from deploy.launch.scaling import LOOK_S, Scaling
from deploy.launch.topology import Topology
from deploy.runs.configs import default_config
from deploy.runs.folder import RunFolder
from deploy.runs.wanted import WantedNumbers, read_wanted, write_wanted
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


def test_a_decision_that_cannot_be_written_is_made_later(tmp_path: Path):
    """A folder stands where the new file is drafted. Tickets wait for nothing, so one of three workers is spare."""
    config, now, notes = default_config(["autoscale.rollout=[1,3]"]), [0.0], list[str]()
    started = count(10, 10)

    def beats() -> dict[str, dict[str, Any]]:
        waits = [("gagpo_rollout_queue_seconds_count", {}, next(started)), ("gagpo_rollout_queue_seconds_sum", {}, 0.0)]
        return {"rollout-0": {"role": "rollout", "metrics": {"gagpo_rollout_queue_seconds": waits}}}

    supervisor = Supervisor(notes.append, config.supervision, beats=beats, clock=lambda: now[0])
    parts = Topology(config=config, run="r", folder=tmp_path, store=NONE, store_url="", given_urls=lambda: (),
                     weights=None, weights_name="", supervisor=supervisor)
    scaling = Scaling(parts, NONE, lambda index: Scripted(f"rollout worker {index}", []), note=notes.append,
                      clock=lambda: now[0])

    def decided() -> tuple[int, int | None]:
        for _ in range(2):
            now[0] += config.autoscale.pause_seconds
            supervisor.check()
            scaling.tick()
        return scaling.workers.wanted, read_wanted(RunFolder(tmp_path)).rollout

    write_wanted(RunFolder(tmp_path), WantedNumbers(rollout=3))
    scaling.start()
    draft = tmp_path / f".wanted.json.{socket.gethostname()}-{os.getpid()}.new"
    draft.mkdir()
    assert decided() == (3, 3)
    assert any("wanted.json could not be written" in note for note in notes)
    draft.rmdir()
    assert decided() == (1, 1)
