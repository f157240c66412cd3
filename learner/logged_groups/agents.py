"""Episodes that `gagpo serve-agent --out FILE` recorded: one JSON line each. The episodes of a task are a group."""

from __future__ import annotations

import msgspec

from learner.logged_groups.files import numbered, opened
from learner.logged_groups.form import LoggedEpisode, LoggedGroup, LoggedStep
from services.errors import UserError


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
            try:
                found = msgspec.json.decode(line, type=AgentLine)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise UserError(f"line {number}: {error}", "give a file of gagpo serve-agent --out") from None
            if found.steps:
                groups.setdefault(found.task, []).append(
                    LoggedEpisode(steps=found.steps, final_state=found.final_state))
        if not groups:
            raise UserError("it has no episode with a call", "give a file of gagpo serve-agent --out")
    return [LoggedGroup(id=task, episodes=episodes) for task, episodes in groups.items()]
