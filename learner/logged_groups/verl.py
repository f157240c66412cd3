"""Rollout dumps of verl and of verl-agent (`trainer.rollout_data_dir`): JSON lines, one file per training step.

verl: a line is an episode, or an output of one. Read: `input`, `output`, `score`; `uid` and `step` if they are there.
    A `uid` is the group's. If every line has its own, of the form PROMPT_SESSION_INDEX, it names the row: lines of one
    PROMPT are a group, those of one SESSION an episode, whose outputs follow one another by INDEX. If such outputs have
    equal scores, they repeat the score of the episode; else each score is the reward of its own output.
    Lines without a `uid` are grouped by their `input`. One whose `input` no other has is refused, because it may be a
    step of verl-agent.
    Lines of another training `step` are other groups: files of several steps may be joined.
    `output` is the entire conversation. Marks of a chat format divide it: lines that hold only a role (`user`, `tool`,
    `ipython`, `assistant` or `model`), or the special tokens around a role. A role that follows one of a few closing
    tags, such as </tool_call>, without a line break counts too. Each text of the model is an action. Its state is the
    text before it, which for the first action is `input`. `score` is the reward of the last step.

verl-agent: a line is a step. Read: `uid` (group), `traj_uid` (episode), `turn` (order, from 0), `output`, `rewards`;
    `anchor_obs` (the state; without it `input`) and `is_action_valid` if they are there. Its trainer shuffles the steps
    and repeats some of them to fill a batch, so each needs its turn, and repeats are left out. Its dump lacks these
    fields, except `output`, until you add them: docs/tasks/logged-episodes.md.

Other fields are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from learner.logged_groups.files import decode_line, numbered, opened
from learner.logged_groups.form import LoggedEpisode, LoggedGroup, LoggedStep, Reward
from services.errors import UserError

_ROLES = "assistant|model|user|tool|ipython"
SPEAKER = re.compile(rf"(?:^|(?<=</tool_call>)|(?<=</action>)|(?<=</answer>)|(?<=</search>))({_ROLES})[ \t]*$",
                     re.MULTILINE)
"""A role on its own line, as decoding without special tokens leaves it, or after a closing tag."""
SPECIAL = re.compile(rf"(?:\n?(?:<\|im_end\|>|<\|eot_id\|>|<\|eom_id\|>|<end_of_turn>|<\|end\|>)\s*)?"
                     rf"(?:<\|im_start\|>|<\|start_header_id\|>|<start_of_turn>|<\|)({_ROLES}|system|observation)"
                     rf"(?:<\|end_header_id\|>|\|>)?[ \t]*\n")
"""The same with the special tokens of ChatML, Llama 3, Gemma, Phi 3 and GLM."""
OTHER_MARKS = re.compile(
    r"<｜(?:User|Assistant)｜>|<\|im_user\|>|<\|start\|>(?:user|functions)|\[/INST\]|\[TOOL_RESULTS\]")
"""Marks between the turns of DeepSeek, Kimi, GPT-OSS and Mistral."""
END = re.compile(r"(?:<\|im_end\|>|<\|eot_id\|>|<\|eom_id\|>|<end_of_turn>|<\|end\|>|<\|endoftext\|>|<eos>)\s*$")
ROW = re.compile(r"(.+)_(\d+)_(\d+)")
"""A `uid` that names a row: prompt, session and index of the output."""
OTHER_TRAINERS: dict[frozenset[str], tuple[str, str]] = {
    frozenset({"input_prompt", "output_response"}): (
        "SkyRL, which does not say what stands between the turns",
        "write its fields as `input`, `output`, `score` and `uid`, decoded with special tokens"),
    frozenset({"prompt", "completion"}): ("verifiers or TRL", "give --from chat, with a `reward` in each line"),
    frozenset({"messages"}): ("chat messages", "give --from chat"),
    frozenset({"eid", "tokens"}): ("Trinity, which has tokens and no texts",
                                    "decode them into the form of gagpo credit --help"),
}
"""Fields of other programs' lines -> name and advice."""
PAGE = "see docs/tasks/logged-episodes.md"
Step = int | float | str | None
"""A training step, as a dump names it."""


class EpisodeLine(msgspec.Struct, kw_only=True, gc=False):
    """The fields of verl's dump that are read."""

    input: str
    output: str
    score: Reward
    uid: str | None = None
    step: Step = None


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
        return decode_line(number, text, kind, PAGE)
    except UserError:
        if number == 1 and (other := _other_trainer(text)):
            raise UserError(f"line 1: this is a dump of {other[0]}", other[1]) from None
        raise


def _other_trainer(text: bytes) -> tuple[str, str] | None:
    """Returns the program whose lines have these fields, and the fix for the user; None if unknown."""
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw]).keys()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return next((trainer for names, trainer in OTHER_TRAINERS.items() if names <= fields), None)


def _groups_of_episodes(lines: Iterator[tuple[int, EpisodeLine]]) -> list[LoggedGroup]:
    every = list(lines)
    if (rows := _named_rows([line for _, line in every])) is not None:
        return _groups_of_rows(every, rows)
    groups: dict[tuple[Step, str], list[LoggedEpisode]] = {}
    first: dict[tuple[Step, str], int] = {}
    named: set[tuple[Step, str]] = set()
    for number, line in every:
        key = line.step, line.uid or line.input
        if line.uid:
            named.add(key)
        groups.setdefault(key, []).append(LoggedEpisode(steps=_turns(number, line)))
        first.setdefault(key, number)
    alone = next((first[key] for key, episodes in groups.items() if len(episodes) == 1 and key not in named), None)
    if alone is not None:
        raise UserError(f"line {alone}: its group is unknown: it has no `uid`, and no other line without a `uid` has "
                        "its `input`",
                        "give each episode its `uid`, and each step of verl-agent `uid`, `traj_uid`, `turn` and "
                        f"`rewards`; {PAGE}")
    return [LoggedGroup(id=f"line {first[key]}", episodes=episodes) for key, episodes in groups.items()]


def _named_rows(lines: Sequence[EpisodeLine]) -> list[tuple[str, int, int]] | None:
    """Returns prompt, session and index of each line if every `uid` names its row; None if one does not."""
    matches = [ROW.fullmatch(line.uid or "") for line in lines]
    if len({(line.step, line.uid) for line in lines}) < len(lines) or None in matches:
        return None
    return [(match[1], int(match[2]), int(match[3])) for match in matches if match]


def _groups_of_rows(
    lines: Sequence[tuple[int, EpisodeLine]], rows: Sequence[tuple[str, int, int]],
) -> list[LoggedGroup]:
    """Returns the lines of each prompt as a group, the outputs of each session as an episode."""
    sessions: dict[tuple[Step, str], dict[int, list[tuple[int, int, EpisodeLine]]]] = {}
    for (number, line), (prompt, session, index) in zip(lines, rows, strict=True):
        sessions.setdefault((line.step, prompt), {}).setdefault(session, []).append((index, number, line))
    groups: list[LoggedGroup] = []
    for (_, prompt), episodes in sessions.items():
        group = [LoggedEpisode(steps=_outputs(sorted(outputs, key=lambda output: output[0])))
                 for outputs in episodes.values()]
        groups.append(LoggedGroup(id=prompt, episodes=group))
    return groups


def _outputs(outputs: Sequence[tuple[int, int, EpisodeLine]]) -> list[LoggedStep]:
    """Returns the steps of one session. Equal scores are one score that each output repeats."""
    parts = [_turns(number, line) for _, number, line in outputs]
    if len({line.score for _, _, line in outputs}) == 1:
        for part in parts[:-1]:
            part[-1].reward = 0.0
    return [step for part in parts for step in part]


def _turns(number: int, line: EpisodeLine) -> list[LoggedStep]:
    """Returns the steps of a conversation: each text of the model is an action, and the text before it its state.

    Raises UserError for a text of the model that follows another one, since its state is unknown, and for a single text
    with marks that are not read.
    """
    marks = SPECIAL if SPECIAL.search(line.output) else SPEAKER
    parts = ["assistant", *marks.split(line.output)]
    if not parts[1].strip() and parts[2:3] == ["assistant"]:  # some versions repeat the header of the first answer
        parts = parts[2:]
    steps: list[LoggedStep] = []
    state = line.input
    for speaker, part in zip(parts[::2], parts[1::2], strict=True):
        text = END.sub("", part.strip()).strip()
        if speaker not in ("assistant", "model"):
            state = f"{state}\n{text}".strip()
            continue
        if steps and not state:
            raise UserError(f"line {number}: nothing stands between answers {len(steps)} and {len(steps) + 1} of its "
                            "`output`, so the state of the second is unknown",
                            f"decode with special tokens (skip_special_tokens=False), or give states; {PAGE}")
        steps.append(LoggedStep(state=state, action=text, reward=0.0))
        state = ""
    if len(steps) == 1 and (mark := OTHER_MARKS.search(line.output)):
        raise UserError(f"line {number}: {mark[0]} divides its turns, and that mark is not read",
                        f"write the turns as messages, and give --from chat; {PAGE}")
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
