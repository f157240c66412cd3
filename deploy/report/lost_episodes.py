"""Counts what the lost episodes of a run's last evaluation have in common, by task type, from the run's archive.

For every environment the counts are of turns: inadmissible, repeated, without change. If an environment can explain a
lost episode (EnvironmentSpec.explain), they are also of how far episodes came and of the kinds of wrong actions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from deploy.report.tables import Grid
from deploy.runs.history import read_columns
from envservice.registry import find_spec
from envservice.spec import Explain, LostEpisode, LostTurn
from services.errors import UserError
from services.process.own_code import OwnCodeRefusedError
from services.store.archive import evaluation_part, file_name
from services.telemetry.evaluations import TRAINED, on_curve, title_of

_COLUMNS = ("group", "k", "step", "task_type", "won", "end", "observation", "action", "admissible", "unchanged",
            "final_observation")
_ENDS = {"turns": "out of turns", "context": "out of context"}
ALL = "all"


@dataclass(slots=True, kw_only=True)
class LostEpisodeCounts:
    """Counts over the episodes of one task type. All but the first are of lost episodes alone."""

    episodes: int = 0
    lost: int = 0
    turns: int = 0
    inadmissible: int = 0
    repeated: int = 0
    """Turns with the observation and the action of an earlier turn of the episode."""
    looped: int = 0
    """Episodes of which half of the turns or more repeat one and the same turn."""
    unchanged: int = 0
    """Turns in which the environment said that nothing changed."""
    ends: Counter[str] = field(default_factory=Counter[str])
    """Episodes by their end: out of turns, out of context, lost."""
    stages: Counter[str] = field(default_factory=Counter[str])
    """Episodes by how far they came."""
    mistakes: Counter[str] = field(default_factory=Counter[str])
    """Inadmissible actions by what was wrong with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostEpisodesReport:
    """The lost episodes of one evaluation."""

    label: str
    temperature: float
    by_type: Mapping[str, LostEpisodeCounts]
    """Task type -> counts. ALL, the last one, has all types together."""
    unexplained: str = ""
    """The reason why the environment does not explain these episodes although it might, as a sentence."""


def count_lost_episodes(
        run: Path, evaluations: Sequence[Mapping[str, Any]], env: str) -> tuple[LostEpisodesReport | None, list[str]]:
    """Returns counts of the trained policy's lost episodes in its last evaluation, and a warning per unreadable file.

    The last evaluation is that of the highest step. Of several at that step it is the one on the held-out games, else
    the last row. `env`: the run's env.name. The report is None if the archive has no such episodes.
    """
    rows = [row for row in evaluations if row["label"] == TRAINED or on_curve(row["label"])]
    if not rows:
        return None, []
    _, last = max(enumerate(rows), key=lambda item: (item[1]["step"], item[1]["label"] == TRAINED, item[0]))
    file = run / "episodes" / file_name(last["step"], evaluation_part(last["label"], last["temperature"]))
    tables, warnings = read_columns([file] if file.exists() else [], _COLUMNS)
    counts: dict[str, LostEpisodeCounts] = {}
    try:
        explain, unexplained = _explain(env), ""
    except OwnCodeRefusedError as error:
        explain, unexplained = None, f"How far they came is not shown: {error}."
    for table in tables:
        # An archive has the rows of an episode together.
        for _, rows in groupby(table.to_pylist(), lambda row: (row["group"], row["k"])):
            episode = list(rows)
            why = _explanation(episode, explain)
            for kind in (episode[0]["task_type"] or "unknown", ALL):
                _count(counts.setdefault(kind, LostEpisodeCounts()), episode, why)
    order = {name: counts[name] for name in sorted(counts, key=lambda name: (name == ALL, name))}
    report = LostEpisodesReport(label=last["label"], temperature=last["temperature"], by_type=order,
                                unexplained=unexplained) if order else None
    return report, warnings


def _explain(env: str) -> Explain | None:
    """Returns the environment's function that explains a lost episode; None if it has none or is not installed.

    Raises OwnCodeRefusedError for an environment whose code may not be imported.
    """
    try:
        return find_spec(env).explain
    except OwnCodeRefusedError:
        raise
    except UserError:
        return None


def _explanation(episode: Sequence[dict[str, Any]], explain: Explain | None) -> LostEpisode | None:
    """Returns the environment's explanation of a lost episode. None if it was won, or if there is no `explain`."""
    if episode[0]["won"] or explain is None:
        return None
    turns = [LostTurn(observation=row["observation"], action=row["action"], admissible=row["admissible"])
             for row in episode]
    try:
        return explain(turns, episode[-1]["final_observation"] or "")
    except ValueError:
        return LostEpisode(stage="texts of another version", mistakes={})


def _count(into: LostEpisodeCounts, episode: Sequence[dict[str, Any]], why: LostEpisode | None) -> None:
    into.episodes += 1
    if episode[0]["won"]:
        return
    into.lost += 1
    into.turns += len(episode)
    into.inadmissible += sum(not row["admissible"] for row in episode)
    turns = Counter((row["observation"], row["action"]) for row in episode)
    into.repeated += len(episode) - len(turns)
    into.looped += 2 * (max(turns.values()) - 1) >= len(episode)
    into.unchanged += sum(row["unchanged"] for row in episode)
    into.ends[_ENDS.get(episode[0]["end"], "lost")] += 1
    if why is not None:
        into.stages[why.stage] += 1
        into.mistakes.update(why.mistakes)


def grids(report: LostEpisodesReport) -> dict[str, Grid]:
    """Returns the tables by their titles. Without a lost episode there are none."""
    types = {name: counts for name, counts in report.by_type.items() if counts.lost}
    if not types:
        return {}
    title = title_of(report.label)
    where = f"{title[:1].upper()}{title[1:]}, T = {report.temperature:g}."
    shares = Grid(
        note=f"{where} Shares of the turns of lost episodes: actions that were not admissible, turns that repeat an "
             "earlier one of their episode (the same observation and action), turns that changed nothing. In a loop: "
             "lost episodes of which half of the turns or more repeat one and the same turn. "
             + report.unexplained,
        head=["type", "lost", "in a loop", "inadmissible", "repeated", "no change", "how they ended"],
        rows=[[name, f"{counts.lost} of {counts.episodes}", _share(counts.looped, counts.lost), *(
            _share(count, counts.turns) for count in (counts.inadmissible, counts.repeated, counts.unchanged)),
            _counts(counts.ends)]
            for name, counts in types.items()])
    made = {"Lost episodes": shares}
    if any(counts.stages for counts in types.values()):
        made["How far lost episodes came"] = Grid(
            note="Lost episodes by the first part of the task that was not done, and their inadmissible actions by "
                 "what was wrong with them.", head=["type", "episodes", "inadmissible actions"],
            rows=[[name, _counts(counts.stages), _counts(counts.mistakes)] for name, counts in types.items()])
    return made


def _share(count: int, turns: int) -> str:
    return f"{count / turns:.0%}"


def _counts(counter: Counter[str]) -> str:
    """Returns `7 never counts the object, 2 ...`, the most frequent first."""
    return ", ".join(f"{count} {name}" for name, count in counter.most_common())
