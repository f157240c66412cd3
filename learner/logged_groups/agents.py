"""Episodes that `gagpo serve-agent --out FILE` recorded: one JSON line each. The episodes of a task are a group."""

from __future__ import annotations

import msgspec

from learner.logged_groups.files import decode_line, numbered, opened
from learner.logged_groups.form import LoggedEpisode, LoggedGroup, LoggedStep
from services.errors import UserError

FIX = "give a file of gagpo serve-agent --out"


class AgentLine(msgspec.Struct, kw_only=True):
    """The fields that are read; others are not."""

    task: str
    steps: list[LoggedStep]
    final_state: str | None = None


def read_agents(name: str) -> list[LoggedGroup]:
    """The groups of a file, in the order of their first episodes. Raises UserError that names the first wrong line."""
    groups: dict[str, list[LoggedEpisode]] = {}
    with opened(name) as stream:
        for number, line in numbered(stream):
            episode = decode_line(number, line, AgentLine, FIX)
            if episode.steps:
                groups.setdefault(episode.task, []).append(
                    LoggedEpisode(steps=episode.steps, final_state=episode.final_state))
        if not groups:
            raise UserError("it has no episode with a call", FIX)
    return [LoggedGroup(id=task, episodes=episodes) for task, episodes in groups.items()]
