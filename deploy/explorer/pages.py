"""The content of each page, as plain values for its template. Independent of HTTP."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from deploy.explorer.drawings import draw, evaluation_charts, training_charts
from deploy.explorer.filters import interval, percent
from deploy.explorer.groups import (
    Alternative,
    Group,
    ShownEpisode,
    StepView,
    alternatives,
    credit_options,
    lacks_cuts,
    mean_value,
    read_group,
)
from deploy.explorer.index import GroupEntry, matrix
from deploy.explorer.runs import ExploredRun, Piece
from deploy.explorer.verdict import heading, judge, sentences
from deploy.runs.comparison import judged_by, repeats, rule_scores, stand_in_notes, verdicts
from deploy.runs.health import warnings
from envservice.text.tool_calls import invalid_reason
from services.amounts import number_of
from services.config.tree import CreditSection
from services.errors import UserError
from services.telemetry.evaluations import env_scores, title_of

if TYPE_CHECKING:
    from learner.credit.explanation import CalculationLine


# How the numbers of a step come about: the estimator explains them, from the numbers of the archive.
#
# A line is shown only if its result is the archive's number. A line whose number is not in the archive, such as
# AdaStep's weight, is shown with the line after it, which uses it. If a line needs what the archive lacks (the state in
# which an episode was cut, other groups of the learner step), its result differs, so the page does not show it.

TOLERANCE = 1e-6


def calculation(group: Group, episode: ShownEpisode, options: CreditSection | None) -> list[list[str]]:
    """Returns the lines that calculate V̄, δ, Â and A of each step, without those that its group does not determine.

    Raises UserError if an estimator of the user's own fails to explain them.
    """
    from learner.credit.checks import explanation_of
    from learner.credit.explanation import ADVANTAGE, DELTA, RAW, VALUE
    from learner.credit.types import Credit, CreditStep

    if not group.has_credit or options is None:
        return [[] for _ in episode.steps]
    steps = [[CreditStep(state=step.state or "", reward=step.reward, invalid=not step.valid, tokens=len(step.tokens),
                         action=step.action, admissible=step.admissible, tag=step.tag or "")
              for step in other.steps] for other in group.episodes]
    credit = Credit(
        returns=_column(group, lambda step: step.ret), values=None, baselines=_column(group, lambda step: step.value),
        deltas=_column(group, lambda step: step.delta), raw_advantages=_column(group, lambda step: step.raw),
        advantages=_column(group, lambda step: step.advantage),
        states=[[step.state for step in row] for row in steps])
    explained = explanation_of(steps, credit, options, group.episodes.index(episode))
    shown: list[list[str]] = []
    for step, lines in zip(episode.steps, explained, strict=True):
        archived = {VALUE: step.value, DELTA: step.delta, RAW: step.raw, ADVANTAGE: step.advantage}
        shown.append(_agreeing(lines, archived))
    return shown


def _agreeing(lines: Sequence[CalculationLine], archived: Mapping[str, float | None]) -> list[str]:
    """Returns the lines whose results are the archive's numbers, each after the lines of intermediate numbers."""
    agreeing: list[str] = []
    before: list[str] = []
    for line in lines:
        before.append(str(line))
        if line.symbol in archived:
            value = archived[line.symbol]
            agreeing += before if value is not None and abs(line.result - value) < TOLERANCE else []
            before = []
    return agreeing


def _column(group: Group, number: Callable[[StepView], float | None]) -> list[list[float]]:
    """Returns a number of each step, [episode][step]. A missing one is NaN, so no line that needs it is shown."""
    return [[nan if (value := number(step)) is None else value for step in episode.steps]
            for episode in group.episodes]


SHOWN = 8
"""Most actions listed at a state. If there are more, their number is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One turn on the episode page."""

    step: StepView
    pieces: list[Piece]
    response: str
    prompt: str | None
    alternatives: list[Alternative]
    visits: int
    episodes: int
    """Number of episodes that visited this state."""
    calculation: list[str]
    """The formulas of its numbers, one per line."""

    @property
    def invalid_reason(self) -> str:
        """Returns why the answer is invalid."""
        return invalid_reason(self.response, cut=bool(self.step.cut))

    @property
    def shown(self) -> list[Alternative]:
        """Returns the best few alternatives, and the turn's own action."""
        return [a for i, a in enumerate(self.alternatives) if i < SHOWN or a.own]


def home(runs: Sequence[ExploredRun]) -> dict[str, Any]:
    """Returns the content of the first page: curves and status of all runs."""
    names, evaluations = [run.name for run in runs], [run.evaluations for run in runs]
    charts = evaluation_charts(names, evaluations) + training_charts(names, [run.metrics for run in runs])
    cards = []
    for run in runs:
        entries = run.groups()
        cards.append({
            "run": run, "groups": len(entries), "env_steps": sum(entry.steps for entry in entries),
            "files": len({entry.file for entry in entries}), "last": run.metrics[-1] if run.metrics else None,
            "evaluation": trained_policy(run.evaluations),
            "verdicts": [one.text for one in verdicts(run.evaluations)],
            "stand_ins": stand_in_notes(run.evaluations),
            "damage": run.damage,
            "warnings": [one.text for one in warnings(run.metrics, run.evaluations, run.credit, agents=run.by_agents)],
            "lost": any(entry.won < entry.episodes for entry in entries),
            "planned": run.config.get("steps"), "estimator": run.credit and run.credit.estimator})
    return {"charts": charts, "cards": cards}


def trained_policy(evaluations: Sequence[dict[str, Any]]) -> dict[str, str] | None:
    """Returns the success of the policy after RL: on the held-out games if it has played them, else at its last
    evaluation. It leaves out the rows of the control (more cold start) and of the policy before RL."""
    if not (rows := judged_by(evaluations)):
        return None
    row = rows[0]
    return {"name": title_of(row["label"]),
            "text": f"{percent(row['success_rate'])} {interval(row['success_low'], row['success_high'])} of "
                    f"{number_of(row['tasks'], 'game')} of {row['split']}, T={row['temperature']:g}"
                    + "".join(f"; {text}" for text in (*env_scores(row), *repeats(row), *rule_scores(row)))}


def instructive(entries: Sequence[GroupEntry]) -> GroupEntry | None:
    """Returns the group whose lost episodes say most about the present policy: trained on, with won and lost episodes,
    from the latest learner step, with the widest spread of returns and the shortest episodes. None: no lost episode."""
    lost = [entry for entry in entries if entry.won < entry.episodes]
    return max(lost, key=lambda entry: (entry.outcome == "trained", entry.spread > 0, entry.step, entry.spread,
                                        -entry.length), default=None)


def evaluations(run: ExploredRun, *, split: str, kind: str, sort: str, descending: bool) -> dict[str, Any]:
    """Returns the content of the page of evaluations by task."""
    table = matrix(run.evaluations, run.groups(), split=split, kind=kind, sort=sort, descending=descending)
    section: object = run.config.get("eval")
    every = cast("dict[str, object]", section).get("every", 5) if isinstance(section, dict) else 5
    return {"matrix": table, "kind": kind, "sort": sort, "descending": descending, "every": every}


def group(run: ExploredRun, group: Group, k: int | None) -> dict[str, Any]:
    """Returns a group's episodes, states and graph. `k`: the episode whose path is highlighted."""
    states = sorted(group.visits.items(), key=lambda item: (-len(item[1]), item[1][0].step.t))
    return {
        "group": group, "entry": group.entry, "k": k, "graph": draw(group, k) if group.visits else None,
        "states": [(visits, mean_value(visits), len({visit.k for visit in visits}), alternatives(visits))
                   for _, visits in states[:60]],
        "hidden_states": max(0, len(states) - 60), "command": command(run, group)}


def episode(run: ExploredRun, group: Group, member: ShownEpisode) -> dict[str, Any]:
    """Returns one row per turn, and the turn that lost the episode."""
    order = [other.k for other in group.episodes]
    at = order.index(member.k)
    explained = _explained(run, group, member)
    rows = [_row(run, group, step, lines) for step, lines in zip(member.steps, explained.lines, strict=True)]
    verdict = judge(group, member)
    return {
        "group": group, "entry": group.entry, "episode": member, "rows": rows,
        "worst": verdict.worst, "better": verdict.better, "cut": verdict.cut,
        "heading": heading(verdict, member), "sentences": sentences(verdict, member),
        "before": order[at - 1] if at else None, "after": order[at + 1] if at + 1 < len(order) else None,
        "largest": group.largest, "command": command(run, group),
        "legend": explained.legend, "wrong": explained.wrong}


class _Explained(NamedTuple):
    """The estimator's explanation of an episode's numbers. `legend`: None if there is no estimator to ask or it failed.
    `wrong`: the error with which it failed, or ""."""

    lines: list[list[str]]
    legend: dict[str, str] | None
    wrong: str = ""


def _explained(run: ExploredRun, group: Group, member: ShownEpisode) -> _Explained:
    """Returns lines and legend. If an estimator of the user's own fails, the page still shows the archive's numbers."""
    from learner.credit.checks import legend_of

    try:
        return _Explained(calculation(group, member, run.credit), legend_of(run.credit) if run.credit else None)
    except UserError as error:
        return _Explained([[] for _ in member.steps], None, str(error))


def _row(run: ExploredRun, group: Group, step: StepView, lines: list[str]) -> StepRow:
    visits = group.visits.get(step.state, []) if step.state is not None else []
    learner = step.learner_logprobs
    pieces = [Piece(run.piece(token), logprob, None if learner is None else _ratio(learner[i], logprob))
              for i, (token, logprob) in enumerate(zip(step.tokens, step.logprobs, strict=True))]
    return StepRow(
        step=step, pieces=pieces, response=run.text(step.tokens) or "".join(piece.text for piece in pieces),
        prompt=run.text(step.prompt_ids),
        alternatives=alternatives(visits, step), visits=len(visits), episodes=len({visit.k for visit in visits}),
        calculation=lines)


def _ratio(learner: float, sampler: float) -> float | None:
    """Returns the probability ratio, or None if a logprob is not finite."""
    difference = learner - sampler
    return math.exp(min(difference, 50.0)) if math.isfinite(difference) else None


def task(runs: Sequence[ExploredRun], name: str, last: int) -> dict[str, Any]:
    """Returns the latest `last` groups of one task in each run, side by side."""
    columns = []
    for run in runs:
        entries = [entry for entry in run.groups() if entry.task == name]
        entries.sort(key=lambda entry: (entry.step, entry.file))
        read = [read_group(run.path / "episodes", entry) for entry in reversed(entries[-last:])]
        columns.append({"run": run, "total": len(entries), "groups": [one for one in read if one is not None]})
    return {"task": name, "last": last,
            "columns": columns if any(column["total"] for column in columns) else []}


def credit_file(group: Group) -> str:
    """Returns the file name of the exported group."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in ".-") else "-" for c in group.entry.group)
    return f"{group.entry.file}-{plain}.json"


def command(run: ExploredRun, group: Group) -> str | None:
    """Returns the `gagpo credit` command for the exported group. None if the group was not trained on, if credit needs
    a critic, tokens or states that the file does not hold, or if the run's credit options cannot be read."""
    from learner.credit.registry import estimator

    if run.credit is None:
        return None
    chosen = estimator(run.credit.estimator)
    if not group.has_credit or chosen.needs_critic or chosen.needs_tokens or lacks_cuts(group, run.credit):
        return None
    return shlex.join(["gagpo", "credit", credit_file(group), *credit_options(run.credit), "--table"])
