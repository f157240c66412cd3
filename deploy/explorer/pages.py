"""The content of each page, as plain values for its template. Independent of HTTP."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from deploy.explorer.drawings import draw, evaluation_charts, training_charts
from deploy.explorer.filters import interval, number, one_line, percent, signed
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
    with_same_choices,
)
from deploy.explorer.index import GroupEntry, matrix
from deploy.explorer.runs import ExploredRun, Piece
from deploy.runs.comparison import judged_by, repeats, rule_scores, stand_in_notes, verdicts
from deploy.runs.health import warnings
from envservice.text.tool_calls import invalid_reason
from services.amounts import number_of
from services.config.tree import CreditSection
from services.errors import UserError
from services.telemetry.evaluations import env_scores, title_of

if TYPE_CHECKING:
    from learner.credit.explanation import CalculationLine

# The verdict on the episode page: wasted turns, the turn that lost the episode, a better action that was admissible
# there, whether its state pools unlike turns, and the lowest advantage.
#
# Sentences are lists of parts. The template turns them into markup.

MOSTLY_WASTED = 0.4
"""Share of an episode's turns from which on illegal and repeated ones are what lost it."""
SEEN = 3
"""Most links to turns that took the better action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Plain text of a sentence, an action on one line, or a link to turn `t` of episode `k` (None: this episode)."""

    text: str
    action: bool = False
    t: int | None = None
    k: int | None = None
    worst: bool = False
    """Whether it links to the turn that lost the most."""


Sentence = list[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeVerdict:
    """The findings about an episode."""

    worst: StepView | None
    """The turn that lost the most value."""
    then: StepView | None = None
    """The turn after it."""
    better: Alternative | None = None
    """The group's best action from the same state, if it earned more."""
    cut: StepView | None = None
    """The last turn, if the cut there cost more than any action."""
    lowest: StepView | None = None
    """The turn with the lowest advantage."""
    illegal: Sequence[StepView] = ()
    """The turns whose answer was malformed or whose action was not admissible, if wasted turns lost the episode."""
    repeated: Sequence[StepView] = ()
    """Its other turns with the observation and the action of an earlier one, if wasted turns lost the episode."""
    pooled: tuple[int, int] | None = None
    """Number of turns in the state of `worst`, and how many of them had its admissible actions, if most others had
    other ones."""
    flat: bool = False
    """Whether no turn lost value, since all advantages of the group are 0."""


def judge(group: Group, episode: ShownEpisode) -> EpisodeVerdict:
    """Returns the verdict on an episode. Without credit, no field is set."""
    worst, last = episode.costliest, episode.steps[-1]
    lowest = min((step for step in episode.steps if step.advantage is not None),
                 key=lambda step: step.advantage or 0.0, default=None)
    illegal, repeated = _wasted(episode)
    if worst is None:
        return EpisodeVerdict(
            worst=None, lowest=lowest, illegal=illegal, repeated=repeated,
            flat=all(step.advantage == 0 for member in group.episodes for step in member.steps))
    return EpisodeVerdict(
        worst=worst, better=_better(group, worst), illegal=illegal, repeated=repeated, pooled=_pooled(group, worst),
        then=next((step for step in episode.steps if step.t == worst.t + 1), None),
        cut=last if episode.cut_off and last.cost < worst.cost else None,
        lowest=lowest)


def _wasted(episode: ShownEpisode) -> tuple[list[StepView], list[StepView]]:
    """Returns the illegal turns and the repeated ones, or none of a won episode and of one with few of them."""
    illegal = [step for step in episode.steps if not (step.valid and step.admissible)]
    seen: set[tuple[str, str]] = set()
    repeated: list[StepView] = []
    for step in episode.steps:
        if (step.observation, step.action) in seen and step.valid and step.admissible:
            repeated.append(step)
        seen.add((step.observation, step.action))
    few = len(illegal) + len(repeated) < MOSTLY_WASTED * len(episode.steps)
    return ([], []) if episode.won or few else (illegal, repeated)


def _pooled(group: Group, step: StepView) -> tuple[int, int] | None:
    """Returns the sizes for `pooled`; None without a list, or if most other turns of the state had the same one."""
    visits = [] if step.state is None else group.visits[step.state]
    alike = len(with_same_choices(visits, step))
    return (len(visits), alike) if 2 * (len(visits) - alike) > len(visits) - 1 else None


def _better(group: Group, step: StepView) -> Alternative | None:
    """Returns the best action that was surely admissible before the step: one that the group took where the same
    actions were."""
    if step.state is None:
        return None
    visits = [visit for visit in with_same_choices(group.visits[step.state], step)
              if visit.step.valid and visit.step.admissible]
    others = [other for other in alternatives(visits, step) if not other.own]
    best = max(others, key=lambda other: other.mean_return, default=None)
    return None if best is None or best.mean_return <= (step.ret or 0.0) else best


def heading(verdict: EpisodeVerdict, episode: ShownEpisode) -> Sentence:
    """Returns the wasted turns if they lost the episode, else the turn that lost the most and its action, or [] if
    nothing was lost."""
    if verdict.illegal or verdict.repeated:
        return _wasted_turns(verdict, episode)
    if verdict.worst is None:
        return []
    return _worst_turn(verdict.worst, "Where it lost most: " if episode.won else "Where it was lost: ")


def _worst_turn(worst: StepView, words: str) -> Sentence:
    return [Part(text=words), Part(text=f"step {worst.t}", t=worst.t, worst=True), Part(text=", "),
            Part(text=one_line(worst.action), action=True)]


def _wasted_turns(verdict: EpisodeVerdict, episode: ShownEpisode) -> Sentence:
    """Returns how many turns were wasted, with the first of each kind."""
    parts: Sentence = [Part(text=f"{len(verdict.illegal) + len(verdict.repeated)} of {len(episode.steps)} steps were "
                                 "wasted: ")]
    for steps, how in ((verdict.illegal, "not admissible or malformed"),
                       (verdict.repeated, "repeated an earlier step")):
        if steps:
            parts += [Part(text=f"{', ' if len(parts) > 1 else ''}{len(steps)} {how} ("),
                      Part(text=f"step {steps[0].t}", t=steps[0].t), Part(text=", "),
                      Part(text=one_line(steps[0].action), action=True), Part(text=")")]
    return [*parts, Part(text=".")]


def sentences(verdict: EpisodeVerdict, episode: ShownEpisode) -> list[Sentence]:
    """Returns the sentences after the heading. The first one continues a heading that names the turn that lost most."""
    worst, cut, lowest = verdict.worst, verdict.cut, verdict.lowest
    if verdict.flat:
        return [_plain("All episodes of this group earned the same, so A = 0 everywhere: they taught nothing.")]
    if worst is None:
        nothing = _plain("No step of this episode lost anything: each was at least as good as its state is on average.")
        if lowest is None or (lowest.advantage or 0.0) >= 0:
            return [nothing]
        return [nothing, _lowest(lowest, "its Â is below the mean" if lowest.valid else "its answer was malformed")]
    texts = [_plain(_cost(verdict, worst, episode)), _choice(verdict, worst)]
    if verdict.illegal or verdict.repeated:
        texts[0] = [*_worst_turn(worst, "Most value was lost at "), Part(text=" "), *texts[0]]
    if verdict.pooled is not None:
        texts.append(_plain(_pooling(*verdict.pooled)))
    if cut is not None:
        texts.append([Part(text="At "), Part(text=f"step {cut.t}", t=cut.t), Part(
            text=f" the episode was cut off in a state worth {number(cut.value, 2)}, whatever was done there: "
                 f"δ = {signed(cut.delta, 2)}.")])
    if lowest is not None and lowest.t not in (worst.t, cut.t if cut else None):
        texts.append(_lowest(lowest, "it also answers for what came after it"))
    return texts


def _lowest(step: StepView, why: str) -> Sentence:
    return [Part(text="The lowest advantage is that of "), Part(text=f"step {step.t}", t=step.t),
            Part(text=f", A = {signed(step.advantage, 2)}: {why}.")]


def _plain(text: str) -> Sentence:
    return [Part(text=text)]


def _cost(verdict: EpisodeVerdict, worst: StepView, episode: ShownEpisode) -> str:
    advantage = f"A = {signed(worst.advantage, 2)}."
    if worst.delta is None:
        return f"— advantage {advantage}"
    if verdict.then is not None:
        after = f"the next one {number(verdict.then.value, 2)}"
    else:
        after = ("and there the episode was cut off, whatever was done" if episode.cut_off else
                 "and the episode ended there")
    return f"— its state was worth V̄ = {number(worst.value, 2)}, {after}: δ = {signed(worst.delta, 2)}, {advantage}"


def _pooling(visits: int, alike: int) -> str:
    """Says that V̄ of a state is a mean over unlike turns."""
    return (f"Of the {visits} steps in that state, {visits - alike} had other admissible actions, so V̄ and δ are about "
            "unlike situations: learner.credit.state_key=observation+admissible tells them apart.")


def _choice(verdict: EpisodeVerdict, worst: StepView) -> Sentence:
    better = verdict.better
    illegal = "" if worst.valid and worst.admissible else (
        "Its action was not admissible there. " if worst.valid else "Its answer was malformed. ")
    if better is None:
        alike = "" if verdict.pooled is None else " with the same admissible actions"
        return _plain(f"{illegal}No other action from that state{alike} did better in this group.")
    count = len(better.visits)
    start = [Part(text=f"{illegal}From the same state "), Part(text=one_line(better.action), action=True), Part(
        text=f" went on to earn {number(better.mean_return, 2)} on average ({number_of(count, 'step')}, "
             f"here {number(worst.ret, 2)}): see ")]
    links = [Part(text=f"episode {visit.k}, step {visit.step.t}", k=visit.k, t=visit.step.t)
             for visit in better.visits[:SEEN]]
    return [*start, *_joined(links), Part(text=".")]


def _joined(links: Sequence[Part]) -> Sentence:
    return [part for i, link in enumerate(links) for part in ([Part(text=", ")] if i else []) + [link]]


# How the numbers of a step come about: the estimator explains them, from the numbers of the archive.
#
# A line is shown only if it gives the archive's number again. A line of a number that the archive does not have, such
# as AdaStep's weight, is shown with the line after it, which uses it. What the archive does not hold (the state that an
# episode was cut off in, other groups of the learner step) costs a line in this way, so no page shows a sum that is not
# the run's.

TOLERANCE = 1e-6


def calculation(group: Group, episode: ShownEpisode, options: CreditSection | None) -> list[list[str]]:
    """For each step of the episode its lines: V̄, δ, Â and A, as far as they can be worked out from its group.

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
    """Returns the lines that give the archive's numbers again, each after those of numbers that only it uses."""
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
    """[episode][step]; what the archive does not hold is not a number, and no line that needs it agrees with it."""
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
    """The words of a run's estimator on an episode's numbers. `legend`: None if it cannot be asked. `wrong`: the
    mistake that keeps it from saying anything, or ""."""

    lines: list[list[str]]
    legend: dict[str, str] | None
    wrong: str = ""


def _explained(run: ExploredRun, group: Group, member: ShownEpisode) -> _Explained:
    """Returns lines and legend. A mistake in an estimator of the user's own leaves the numbers of the archive alone."""
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
        prompt=None if step.prompt_ids is None else run.text(step.prompt_ids),
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
    """Returns the `gagpo credit` command for the exported group. None if it was not trained on, if it needs a critic or
    states that the archive does not have, and if the config cannot be read."""
    from learner.credit.registry import estimator

    if run.credit is None:
        return None
    chosen = estimator(run.credit.estimator)
    if not group.has_credit or chosen.needs_critic or chosen.needs_tokens or lacks_cuts(group, run.credit):
        return None
    return shlex.join(["gagpo", "credit", credit_file(group), *credit_options(run.credit), "--table"])
