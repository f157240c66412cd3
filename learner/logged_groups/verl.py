"""Rollout dumps of verl and of verl-agent (`trainer.rollout_data_dir`): JSON lines, one file per training step.

verl: a line is an episode. Read: `input`, `output`, `score`; `uid` if it is there.
    A group is the lines of one `uid`, or else of one `input`. A line without a `uid` needs another one with its
    `input`: it may be a step of verl-agent. `output` is the whole conversation without its special
    tokens, as Qwen's chat format leaves it: the model's text, then a line `user` or `tool`, what was said to the model,
    a line `assistant`, its next text. Each text of the model is an action. Its state is what was said before it, which
    for the first one is `input`. `score` is the reward of the last step.

verl-agent: a line is a step. Read: `uid` (group), `traj_uid` (episode), `turn` (order, from 0), `output`, `rewards`;
    `anchor_obs` (the state; without it `input`) and `is_action_valid` if they are there. Its trainer shuffles the steps
    and repeats some of them to fill a batch, so each needs its turn, and repeats are left out. Its dump has none of
    these fields but `output` until one adds them: docs/tasks/logged-episodes.md.

Other fields are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from learner.logged_groups.files import numbered, opened
from learner.logged_groups.form import LoggedEpisode, LoggedGroup, LoggedStep, Reward
from services.errors import UserError

SPEAKER = re.compile(r"^(assistant|user|tool)[ \t]*$", re.MULTILINE)
PAGE = "see docs/tasks/logged-episodes.md"


class EpisodeLine(msgspec.Struct, kw_only=True, gc=False):
    """The fields of verl's dump that are read."""

    input: str
    output: str
    score: Reward
    uid: str | None = None


class StepLine(msgspec.Struct, kw_only=True, gc=False):
    """The fields of verl-agent's dump that are read."""

    uid: str
    traj_uid: str
    turn: int
    input: str
    output: str
    rewards: Reward
    anchor_obs: str | None = None
    is_action_valid: bool = True


class _FirstLine(msgspec.Struct):
    traj_uid: str | None = None


Line = TypeVar("Line", EpisodeLine, StepLine)


def read_verl(name: str) -> list[LoggedGroup]:
    """Returns the groups in a dump (`-`: standard input). Raises UserError that names the line of the mistake."""
    with opened(name) as stream:
        lines = numbered(stream)
        first = next(lines, None)
        if first is None:
            raise UserError("it has no lines", PAGE)
        if _decoded(*first, _FirstLine).traj_uid is None:
            return _groups_of_episodes(_lines(first, lines, EpisodeLine))
        return _groups_of_steps(_lines(first, lines, StepLine))


def _lines(first: tuple[int, bytes], rest: Iterator[tuple[int, bytes]], kind: type[Line]) -> Iterator[tuple[int, Line]]:
    yield first[0], _decoded(*first, kind)
    for number, text in rest:
        yield number, _decoded(number, text, kind)


Decoded = TypeVar("Decoded", EpisodeLine, StepLine, _FirstLine)


def _decoded(number: int, text: bytes, kind: type[Decoded]) -> Decoded:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"line {number}: {error}", PAGE) from None


def _groups_of_episodes(lines: Iterator[tuple[int, EpisodeLine]]) -> list[LoggedGroup]:
    groups: dict[str, list[LoggedEpisode]] = {}
    first: dict[str, int] = {}
    named: set[str] = set()
    for number, line in lines:
        key = line.uid or line.input
        if line.uid:
            named.add(key)
        groups.setdefault(key, []).append(LoggedEpisode(steps=_turns(line)))
        first.setdefault(key, number)
    alone = next((first[key] for key, episodes in groups.items() if len(episodes) == 1 and key not in named), None)
    if alone is not None:
        raise UserError(f"line {alone}: its group is unknown: it has no `uid`, and no other line without a `uid` has "
                        "its `input`",
                        "give each episode its `uid`, and each step of verl-agent `uid`, `traj_uid`, `turn` and "
                        f"`rewards`; {PAGE}")
    return [LoggedGroup(id=f"line {first[key]}", episodes=episodes) for key, episodes in groups.items()]


def _turns(line: EpisodeLine) -> list[LoggedStep]:
    """Returns the steps of a conversation: each text of the model is an action, and the text before it is the state."""
    parts = ["assistant", *SPEAKER.split(line.output)]
    if not parts[1].strip() and parts[2:3] == ["assistant"]:  # some versions repeat the header of the first answer
        parts = parts[2:]
    steps: list[LoggedStep] = []
    said = line.input
    for speaker, text in zip(parts[::2], parts[1::2], strict=True):
        if speaker == "assistant":
            steps.append(LoggedStep(state=said, action=text.strip(), reward=0.0))
            said = ""
        else:
            said = f"{said}\n{text.strip()}".strip()
    steps[-1].reward = line.score
    return steps


def _groups_of_steps(lines: Iterator[tuple[int, StepLine]]) -> list[LoggedGroup]:
    groups: dict[str, dict[str, dict[int, LoggedStep]]] = {}
    for number, line in lines:
        step = LoggedStep(state=line.input if line.anchor_obs is None else line.anchor_obs, action=line.output,
                          reward=line.rewards, invalid=not line.is_action_valid)
        episode = groups.setdefault(line.uid, {}).setdefault(line.traj_uid, {})
        if episode.setdefault(line.turn, step) != step:  # a repeat that fills a batch is equal
            raise UserError(f"line {number}: turn {line.turn} of the episode {line.traj_uid} is there twice, "
                            f"and differs", PAGE)
    return [LoggedGroup(id=uid, episodes=[_in_order(name, steps) for name, steps in episodes.items()])
            for uid, episodes in groups.items()]


def _in_order(name: str, steps: dict[int, LoggedStep]) -> LoggedEpisode:
    for turn in range(len(steps)):
        if turn not in steps:
            raise UserError(f"turn {turn} of the episode {name} is missing", PAGE)
    return LoggedEpisode(steps=[steps[turn] for turn in range(len(steps))])
