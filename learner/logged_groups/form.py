"""The form of a logged group, and its credit.

    {"id": "task 7", "episodes": [{"steps": [{"state": "hall", "action": "go north", "reward": 1, "invalid": false,
                                              "admissible": ["go north", "look"], "unchanged": false,
                                              "tag": "explore"}],
                                   "final_state": "kitchen", "final_admissible": ["go south", "look"]}]}

All fields except `episodes`, `steps`, `state` and `reward` may be left out.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, cast

import msgspec
import numpy as np
from pydantic import ValidationError

from envservice.base import admits
from learner.credit.checks import check_credit
from learner.credit.estimator import Estimator
from learner.credit.group_operations import penalized
from learner.credit.registry import (
    ESTIMATORS,
    describe_states,
    estimator,
    options_of,
)
from learner.credit.state_keys import LISTED_KEY, TEXT_KEYS, Keys, exact, listed, pooled, similarity_of, stayed
from learner.credit.types import ZERO, Credit, CreditStep, mixed_share, statistics
from services.amounts import number_of
from services.config.refusals import refusal
from services.config.sections import CreditSection
from services.errors import UserError
from services.process.own_code import as_user_error
from services.records import choices_digest

LARGEST_LOGGED_REWARD = 1e100
"""The square of a larger one may be infinite, and its advantage 0."""
Reward = Annotated[float, msgspec.Meta(ge=-LARGEST_LOGGED_REWARD, le=LARGEST_LOGGED_REWARD)]

OF_RUNS = ("prompt", "environment")
"""State keys that compare what only a run records."""
SOURCE_BY_FIELD = {"input": "verl", "output": "verl", "uid": "verl", "task": "agents", "messages": "chat",
               "prompt": "chat", "completion": "chat", "example_id": "chat", "reward": "chat"}
"""Maps a field that no group has to the `--from` whose lines have it."""


class LoggedStep(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One step of an episode."""

    state: str
    """The text before the action. Steps of a group whose states have the same key share a value."""
    reward: Reward
    """r_t, the reward of this step alone."""
    action: str | None = None
    """The action, for people and for estimators that compare actions."""
    invalid: bool = False
    """Malformed output, which gets the penalty."""
    reason: str = ""
    """Why the output is invalid, for people."""
    admissible: list[str] | None = None
    """The admissible actions before the action, for the state key `observation+admissible`."""
    unchanged: bool = False
    """Whether the action changed nothing, for the option `stay`."""
    tag: str = ""
    """The kind of reasoning that the output named, for the estimator `rlvmr`."""


class LoggedEpisode(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One episode."""

    steps: Annotated[list[LoggedStep], msgspec.Meta(min_length=1)]
    final_state: str | None = None
    """The text in which a budget cut the episode off; None: the game ended."""
    final_admissible: list[str] | None = None
    """The admissible actions there."""


class LoggedGroup(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The episodes of one task instance."""

    episodes: Annotated[list[LoggedEpisode], msgspec.Meta(min_length=1)]
    id: str | None = None
    """Name of the group, for people."""

    @property
    def actions(self) -> list[list[str | None]] | None:
        """Returns the actions, [episode][step]; None if no step has one."""
        rows = [[step.action for step in episode.steps] for episode in self.episodes]
        return rows if any(action is not None for row in rows for action in row) else None


def parse_group(data: str | bytes | Mapping[str, Any], where: str = "") -> LoggedGroup:
    """Returns the group of a JSON text or a mapping. Raises UserError that names `where` and the first wrong field."""
    try:
        if isinstance(data, (str, bytes)):
            return msgspec.json.decode(data, type=LoggedGroup)
        return msgspec.convert(msgspec.to_builtins(data, enc_hook=_as_builtin), LoggedGroup)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
        what, _, path = json_mistake(error, data).partition(" - at ")
        field = re.sub(r"\[(\d+)\]", r".\1", path.strip("`")).removeprefix("$.")
        unknown = re.fullmatch(r"Object contains unknown field `(\w+)`", what)
        source = SOURCE_BY_FIELD.get(unknown[1]) if unknown and not path else None
        known = (*LoggedStep.__struct_fields__, *LoggedEpisode.__struct_fields__)
        meant = difflib.get_close_matches(unknown[1], known, n=1) if unknown and path else []
        of_file = isinstance(data, (str, bytes))  # else a caller in Python has no options
        fix = "see gagpo credit --help for the form" if of_file else "docs/tasks/logged-episodes.md has the form"
        if meant:
            fix = f"did you mean `{meant[0]}`?"
        elif source and of_file:
            fix = f"give --from {source}"
        raise UserError(f"{where}{field + ': ' if field else ''}{what}", fix) from None


def json_mistake(error: Exception, data: object) -> str:
    """Returns the text of a mistake in JSON. NaN and infinities, which Python's `json` writes, are named."""
    what = str(error)
    place = re.search(r"invalid character \(byte (\d+)\)", what)
    if place is None or not isinstance(data, (str, bytes)):
        return what
    text, start = data.encode() if isinstance(data, str) else data, int(place[1])
    number = re.match(rb"-?(NaN|Infinity)\b", text[start - text[:start].endswith(b"-"):])
    return what.replace("invalid character", f"{number[0].decode()} is no number") if number else what


def credit_options(given: Mapping[str, Any]) -> CreditSection:
    """Returns the options of an estimator from keys of `learner.credit`, checked for logged groups.

    Raises UserError that names the option.
    """
    try:
        section = CreditSection(**given)
    except ValidationError as error:
        raise refusal(error, "the options", "option ") from None
    _check_state_key(section.state_key)  # before its module is imported
    options = options_of(section, "option ")
    _check_state_key(options.state_key)  # it may be a default of the estimator
    _check_needs(options.estimator, estimator(options.estimator))
    return options


def _check_state_key(state_key: str) -> None:
    """Raises UserError for a state key that compares what only a run records."""
    if state_key in OF_RUNS or ":" in state_key:
        raise UserError(f"option state_key {state_key}: the input has texts, and this key compares the records "
                        "of a run", "write what it compares into `state`, and leave the option out")


def credit_of(groups: Sequence[LoggedGroup], options: CreditSection) -> list[Credit]:
    """Returns one credit per group. The groups count as one learner step: `normalize: batch` is over all of them.

    Raises UserError as check_fields and check_credit do, if the state key compares lists of admissible actions and
    there are none, and if an estimator of the user's own ends the process.
    """
    chosen = estimator(options.estimator)
    if options.state_key == LISTED_KEY and all(step.admissible is None for group in groups
                                               for episode in group.episodes for step in episode.steps):
        raise UserError(f"no step has a list of admissible actions, and the state key {LISTED_KEY} compares them",
                        "give each step its list as `admissible`, or choose another state key")
    check_fields(((f"step {t} of episode {k} of group {group.id or number}", step)
                for number, group in enumerate(groups, 1) for k, episode in enumerate(group.episodes)
                for t, step in enumerate(episode.steps)), options.estimator)
    ended = f"the estimator {options.estimator} ended the process"
    with as_user_error(ended, f"fix {options.estimator.partition(':')[0]}", errors=(SystemExit,)):
        credits = chosen.batch([_credit_of_group(group, chosen, options) for group in groups], options)
    check_credit(credits, [[episode.steps for episode in group.episodes] for group in groups], options.estimator)
    return credits


def _credit_of_group(group: LoggedGroup, chosen: Estimator, options: CreditSection) -> Credit:
    """Returns the credit of one group. An episode alone in its group has nothing to compare: it gets the penalty only.
    """
    steps = _steps(group, options)
    credit = chosen.group(steps, options)
    if len(steps) == 1 and _compares_episodes(chosen):
        zeros = [[0.0] * len(steps[0])]
        return replace(credit, deltas=credit.deltas and zeros, raw_advantages=zeros,
                       advantages=penalized(zeros, steps, cast("Any", options)))
    return credit


def _compares_episodes(chosen: Estimator) -> bool:
    """Whether it gives an episode that is alone in its group no credit. Estimators of the user's own are not judged."""
    return chosen in ESTIMATORS.values() and getattr(chosen, "needs_group", True)


def idle_options(groups: Sequence[LoggedGroup], options: CreditSection) -> dict[str, str]:
    """Returns option -> reason for the options that are set and read fields that no group has."""
    episodes = [episode for group in groups for episode in group.episodes]
    lacking = {
        "stay": None if any(step.unchanged for episode in episodes for step in episode.steps)
        else "no step is `unchanged`",
        "bootstrap": None if any(episode.final_state is not None for episode in episodes)
        else "no episode has a `final_state`",
    }
    return {name: f"in this input, in which {lacks}" for name, lacks in lacking.items()
            if lacks and getattr(options, name, False)}


def quality_warnings(groups: Sequence[LoggedGroup], credits: Sequence[Credit], options: CreditSection, *,
                agents: bool = False) -> list[str]:
    """Returns warnings about input that makes credit worth little, each with the field or option that helps."""
    if not groups:
        return []
    if all(len(group.episodes) == 1 for group in groups):
        return ["every group has one episode, so there is nothing to compare: put the episodes of one task into one "
                "group (in dumps of verl by one `uid`)"]
    lines: list[str] = []
    single = sum(len(group.episodes) == 1 for group in groups)
    if single and _compares_episodes(estimator(options.estimator)):
        lines.append(f"{single:,} of {number_of(len(groups), 'group')} have one episode, which nothing can be compared "
                     "with: its steps get no credit")
    if all(abs(a) <= ZERO for credit in credits for row in credit.advantages for a in row):
        lines.append("no step has an advantage, because in each group all that can be compared earned the same: "
                      "check the rewards")
    if differing := sum(len({row[0] for row in credit.states}) > 1 for credit in credits):
        lines.append(f"in {differing:,} of {number_of(len(credits), 'group')} the episodes begin in different states: "
                     "credit compares tries at one task, so give each task a group of its own")
    later = [step for group in groups for episode in group.episodes for step in episode.steps[1:]]
    if empty := sum(not step.state.strip() for step in later):
        lines.append(f"{empty:,} of {number_of(len(later), 'later step')} have an empty state, and count as one state: "
                     "if something stood there, write it into the state")
    alone = statistics(credits)["singleton_share"]
    if max(len(episode.steps) for group in groups for episode in group.episodes) == 1:
        lines.append("every episode has one step, so the credit is that of the episode: if they have several "
                      "turns, the marks between these were lost (in dumps of verl, decode with special tokens)")
    else:
        lists = [[[choices_digest(step.admissible or ()) for step in episode.steps] for episode in group.episodes]
                 for group in groups]
        lines += describe_states(alone, mixed_share(credits, lists), options, source="agents" if agents else "log")
    return lines


def check_fields(steps: Iterable[tuple[str, LoggedStep]], name: str) -> None:
    """Raises UserError if the steps lack a field that the estimator of that name reads.

    `steps`: (place of the step in messages, step).
    """
    chosen = estimator(name)
    compares, rewards = (getattr(chosen, trait, False) for trait in ("compares_actions", "rewards_tags"))
    placed = list(steps) if compares or rewards else []
    if rewards and not any(step.tag for _, step in placed):
        raise UserError(f"no step has a tag, and the estimator {name} rewards kinds of reasoning by their tags",
                        "give each step its tag, or choose another estimator")
    if compares and (lacking := [where for where, step in placed if step.action is None]):
        raise UserError(f"{lacking[0]} has no action, and the estimator {name} compares actions",
                        "give each step its action, or choose another estimator")


def _as_builtin(value: object) -> object:
    if isinstance(value, np.generic):
        return cast("Any", value).item()
    raise TypeError(f"{type(value).__name__} is no text, number, list or mapping")


def _check_needs(name: str, chosen: Estimator) -> None:
    lacking = {"a critic": chosen.needs_critic, "response tokens": chosen.needs_tokens}
    if any(lacking.values()):
        what = " and ".join(thing for thing, needed in lacking.items() if needed)
        raise UserError(f"option estimator {name}: it needs {what}, which the input does not have",
                        "see the episodes/ of a run, or choose another")


def _steps(group: LoggedGroup, options: CreditSection) -> list[list[CreditStep]]:
    """Returns the steps as input of estimators. Pooled states have their representative text as key."""
    def text(state: str, admissible: Sequence[str] | None) -> str:
        return listed(state, choices_digest(admissible or ())) if options.state_key == LISTED_KEY else state

    rows = [[text(step.state, step.admissible) for step in episode.steps] for episode in group.episodes]
    finals = [None if episode.final_state is None else text(episode.final_state, episode.final_admissible)
              for episode in group.episodes]
    state = pooled(rows, (final for final in finals if final is not None), TEXT_KEYS.get(options.state_key, exact),
                   similarity_of(options))
    keys = Keys(steps=[[state[word] for word in row] for row in rows],
                cut_in=[None if final is None else state[final] for final in finals])
    if options.stay:
        keys = stayed(keys, [[step.unchanged for step in episode.steps] for episode in group.episodes])
    return [[CreditStep(state=key, reward=step.reward, invalid=step.invalid, action=step.action, tag=step.tag,
                        admissible=step.action is None or admits(step.admissible or (), step.action),
                        cut_in=cut if step is episode.steps[-1] else None)
             for step, key in zip(episode.steps, row, strict=True)]
            for episode, row, cut in zip(group.episodes, keys.steps, keys.cut_in, strict=True)]
