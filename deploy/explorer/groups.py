"""One group, read from its rows in the archive, with its shared states and its costliest step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from deploy.explorer.index import GroupEntry
from services.config.tree import CreditSection
from services.files import Damaged
from services.parquet_files import ARCHIVE_ROWS, open_parquet, read_table
from services.records import CUT

CREDIT = ("return", "value", "baseline", "delta", "raw_advantage", "advantage", "state_key")
"""Columns that have values only for turns that were trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One turn."""

    t: int
    observation: str
    """The observation that the policy read."""
    result: str | None
    """The next observation, which is the result of the action."""
    action: str
    valid: bool
    admissible: bool
    reward: float
    version: str
    num_prompt: int
    prompt_ids: list[int]
    tokens: list[int]
    logprobs: list[float]
    """Logprobs of the sampler."""
    learner_logprobs: list[float] | None
    """Logprobs of the same tokens, which the learner recomputed before it trained on them."""
    ret: float | None
    """R̂, the discounted return from this turn on (docs/algorithms.md)."""
    value: float | None
    """V̄, or the baseline that the estimator used for this turn."""
    delta: float | None
    raw: float | None
    """Â, before the normalisation that gives A."""
    advantage: float | None
    """A, which the loss saw."""
    state: str | None
    tag: str | None = None
    """The kind of reasoning that the answer named."""
    judged: str | None = None
    """The label of the action, if the policy was asked to judge it: `good` or `bad`."""
    verdicts: list[str] | None = None
    """The judgements that the policy gave of the action: `good`, `bad`, or empty for an answer that says neither."""
    cut: bool | None = None
    """Whether the answer was ended by its limit of tokens, and not by the policy."""
    choices: str | None = None
    """Digest of the admissible actions before the action; "" if there was no list."""

    @property
    def cost(self) -> float:
        """Returns the value by which turns are compared: δ, else A, else 0 without credit."""
        return self.advantage or 0.0 if self.delta is None else self.delta


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownEpisode:
    """Member k of its group."""

    k: int
    won: bool
    end: str
    worker: str
    attempt: int
    steps: list[StepView]
    final_observation: str | None

    @property
    def total(self) -> float:
        """Returns the undiscounted return."""
        return sum(step.reward for step in self.steps)

    @property
    def cut_off(self) -> bool:
        """Returns whether a budget ended the episode, and credit took the state after it as worth 0 (no `bootstrap`).

        Then δ of the last turn is R̂ - V̄, whatever the action was. R̂ is then the turn's reward as the learner
        saw it, less a penalty.
        """
        last = self.steps[-1]
        return (self.end in CUT and last.delta is not None
                and abs(last.delta - (last.ret or 0.0) + (last.value or 0.0)) < 1e-6)

    @property
    def costliest_choice(self) -> StepView | None:
        """Returns the turn with the lowest δ below 0 (without δ, the lowest advantage): its action lost the most value.

        It never returns the last turn of an episode that was cut off, which no action caused. None: no turn lost value.
        """
        return _costliest(self.steps[:-1] if self.cut_off else self.steps)

    @property
    def costliest(self) -> StepView | None:
        """Returns the costliest choice. If no action lost value, returns the last turn if the cut there lost some."""
        return self.costliest_choice or _costliest(self.steps)


def _costliest(steps: Sequence[StepView]) -> StepView | None:
    cost, step = min(((step.cost, step) for step in steps), key=lambda pair: pair[0], default=(0.0, None))
    return step if cost < -1e-9 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One turn at a state."""

    k: int
    step: StepView
    won: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One action at a state, with all turns of the group that took it there."""

    action: str
    visits: list[Visit]
    own: bool
    """Whether the turn shown took it."""
    elsewhere: bool = False
    """Whether all its turns had other admissible actions than the turn shown."""

    @property
    def mean_return(self) -> float:
        """Returns the mean of R̂."""
        return sum(visit.step.ret or 0.0 for visit in self.visits) / len(self.visits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All episodes of a group, by k."""

    entry: GroupEntry
    episodes: list[ShownEpisode]
    visits: dict[str, list[Visit]] = field(default_factory=dict)
    """State key -> its visits, in order of k and t."""

    def __post_init__(self) -> None:
        for episode in self.episodes:
            for step in episode.steps:
                if step.state is not None:
                    visit = Visit(k=episode.k, step=step, won=episode.won)
                    self.visits.setdefault(step.state, []).append(visit)

    def episode(self, k: int) -> ShownEpisode | None:
        """Returns member k, or None if there is no such member."""
        return next((episode for episode in self.episodes if episode.k == k), None)

    @property
    def lost(self) -> ShownEpisode | None:
        """Returns the lost episode whose costliest choice cost the most, or None if all were won."""
        def cost(episode: ShownEpisode) -> float:
            return 0.0 if (step := episode.costliest_choice) is None else step.cost

        return min((episode for episode in self.episodes if not episode.won), key=cost, default=None)

    @property
    def has_credit(self) -> bool:
        """Returns whether the group was trained on."""
        return any(step.advantage is not None for episode in self.episodes for step in episode.steps)

    @property
    def largest(self) -> float:
        """Returns the largest |A|, at least 1, which is the scale of the coloured bars."""
        sizes = [abs(step.advantage) for episode in self.episodes for step in episode.steps
                 if step.advantage is not None]
        return max([1.0, *sizes])


def mean_value(visits: Sequence[Visit]) -> float | None:
    """Returns the mean V̄ of a state's visits, or None without values. Some estimators have another V̄ at each visit."""
    values = [visit.step.value for visit in visits if visit.step.value is not None]
    return fmean(values) if values else None


def with_same_choices(visits: Sequence[Visit], step: StepView) -> list[Visit]:
    """Returns the visits with the same admissible actions as `step`; all visits if `step` has no list of actions."""
    return [visit for visit in visits if not step.choices or visit.step.choices == step.choices]


def alternatives(visits: Sequence[Visit], own: StepView | None = None) -> list[Alternative]:
    """Returns the actions that were taken at a state, the best return first."""
    by_action: dict[str, list[Visit]] = {}
    for visit in visits:
        by_action.setdefault(visit.step.action, []).append(visit)
    actions = [Alternative(action=action, visits=those, own=own is not None and action == own.action,
                           elsewhere=own is not None and not with_same_choices(those, own))
               for action, those in by_action.items()]
    return sorted(actions, key=lambda a: (-a.mean_return, -len(a.visits), a.action))


def read_group(folder: Path, entry: GroupEntry) -> Group | None:
    """Reads only the row groups with this group. Returns None if the file was replaced or deleted meanwhile."""
    import pyarrow as pa

    try:
        path = folder / f"{entry.file}.parquet"
        with open_parquet(path, rows=ARCHIVE_ROWS) as file:
            if max(entry.row_groups) >= file.num_row_groups:
                return None
            table = read_table(file, path, row_groups=entry.row_groups)
    except (OSError, ValueError, Damaged):  # deleted or damaged after it was indexed; the next refresh notices
        return None
    here = pa.array([group == entry.group for group in table.column("group").to_pylist()])
    rows = table.filter(here).to_pylist()
    if not rows:
        return None
    members: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row["k"], row["step"])):
        members.setdefault(row["k"], []).append(row)
    return Group(entry=entry, episodes=[_episode(member) for member in members.values()])


def _episode(rows: list[dict[str, Any]]) -> ShownEpisode:
    last = rows[-1]
    after = [row["observation"] for row in rows[1:]] + [last["final_observation"] or None]
    return ShownEpisode(
        k=last["k"], won=last["won"], end=last["end"], worker=last["worker"], attempt=last["attempt"],
        steps=[_step(row, result) for row, result in zip(rows, after, strict=True)], final_observation=after[-1])


def _step(row: dict[str, Any], result: str | None) -> StepView:
    baseline = row["baseline"]
    return StepView(
        t=row["step"], observation=row["observation"], result=result, action=row["action"], valid=row["valid"],
        admissible=row["admissible"], reward=row["reward"], version=row["version"], num_prompt=row["prompt_tokens"],
        prompt_ids=row["prompt_ids"], tokens=row["tokens"], logprobs=row["logprobs"],
        learner_logprobs=row["learner_logprobs"], ret=row["return"],
        value=row["value"] if baseline is None else baseline, delta=row["delta"], raw=row["raw_advantage"],
        advantage=row["advantage"], state=row["state_key"], tag=row["tag"],
        judged=row["judged"], verdicts=row["verdicts"], cut=row["cut"], choices=row["choices"])


NONE = "<none>"
"""An action that nobody takes."""


def _credit_step(step: StepView, state: str) -> dict[str, Any]:
    values = {"state": state, "action": step.action, "reward": step.reward, "invalid": not step.valid}
    # In the command's input, `admissible` is a list, and an empty list allows every action. One that holds only NONE
    # marks the action as inadmissible.
    if not step.tag:
        return values
    return {**values, "tag": step.tag, **({} if step.admissible else {"admissible": [NONE]})}


def credit_input(group: Group, options: CreditSection) -> dict[str, Any]:
    """Returns the group as input of `gagpo credit`. Its states are observations, which the command pools by the run's
    state key. A state key made of more than the observation (prompt, admissible actions, `stay`) is copied instead."""
    texts = _pools_texts(options)

    def state(step: StepView) -> str:
        return step.observation if texts else step.state or ""

    episodes: list[dict[str, Any]] = []
    for episode in group.episodes:
        episodes.append({"steps": [_credit_step(step, state(step)) for step in episode.steps]})
        if texts and episode.end in CUT and episode.final_observation:
            episodes[-1]["final_state"] = episode.final_observation
    return {"episodes": episodes}


def lacks_cuts(group: Group, options: CreditSection) -> bool:
    """Returns whether credit depends on the states in which episodes were cut, but the archive lacks their keys."""
    from learner.credit.registry import estimator

    reads = getattr(options, "bootstrap", False) or getattr(estimator(options.estimator), "reads_cuts", False)
    return reads and not _pools_texts(options) and any(one.end in CUT for one in group.episodes)


def _pools_texts(options: CreditSection) -> bool:
    from learner.credit.state_keys import TEXT_KEYS

    return options.state_key in TEXT_KEYS and not options.stay


def credit_options(options: CreditSection) -> Sequence[str]:
    """Returns the options of `gagpo credit` with the run's values, where they differ from the defaults."""
    from learner.credit.registry import declared

    given = options.model_dump()
    if not _pools_texts(options):
        given |= {"state_key": "observation", "stay": False}  # the run's keys take the place of the texts
    if given.get("normalize") == "batch":
        given["normalize"] = "none"  # one group cannot be normalised over others, so compare Â
    words: list[str] = []
    # The options of a user's own state key are left out with it: the command does not know them.
    for name, default in declared(options.model_copy(update={"state_key": given["state_key"]})).items():
        if (value := given.get(name, default)) != default:
            option = name.replace("_", "-")
            words += ([f"--{option}" if value else f"--no-{option}"] if isinstance(value, bool) else
                      [f"--{option}", str(value).removesuffix(".0") if isinstance(value, float) else str(value)])
    return words
