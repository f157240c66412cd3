"""Heartbeats of a process that has died already."""

from __future__ import annotations

from typing import Any

from scripted_member import Scripted

from services.config.tree import SupervisionSection
from services.controller.member import End
from services.controller.supervise import LOOK_S, STALE_BEATS, Supervisor


def test_late_heartbeats_of_a_former_process_do_not_make_the_next_one_ready():
    now, beats = [0.0], dict[str, dict[str, Any]]()
    supervisor = Supervisor(lambda _: None, SupervisionSection(), clock=lambda: now[0], beats=lambda: beats)
    member = Scripted("worker", [], beat="rollout-0")

    def hear(count: int) -> None:
        for _ in range(count):
            now[0] += LOOK_S
            beats["rollout-0"] = {"at": now[0]}
            supervisor.check()

    supervisor.add(member)
    hear(STALE_BEATS + 1)
    assert not supervisor.waits
    member.end = End("killed", killed=True)
    supervisor.check()
    supervisor.check()
    hear(STALE_BEATS)
    assert supervisor.waits
    hear(1)
    assert not supervisor.waits
