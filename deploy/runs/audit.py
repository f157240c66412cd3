"""Follows every ticket of a run to its end, from the ledger, the archive and, while the run is active, the store.

A training group has one fate: trained at one step, dropped with a reason, still in flight, or forgotten when the store
was reset to a checkpoint. Anything else is a finding. The ledger and the store's manifests say what should have
happened; the archive shows what happened.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from deploy.runs.folder import RunFolder
from deploy.runs.history import RunHistory, archive_files
from services.amounts import number_of
from services.config.tree import Config
from services.errors import described
from services.files import Damaged
from services.parquet_files import ARCHIVE_ROWS, open_parquet, read_table
from services.records import Manifest
from services.store.archive import evaluation_part
from services.store.step_log import Journal
from services.telemetry.evaluations import title_of
from services.telemetry.metrics_file import GIVEN, MetricsRow, read_evaluations, read_metrics, read_rows

_VERSIONS = re.compile(r"(\d{1,18}\.\d{1,18}(,\d{1,18}\.\d{1,18})*)?")
"""The short versions that sampled a turn's tokens."""
COLUMNS = ["group", "k", "outcome", "reason", "version"]


class Fate(msgspec.Struct, kw_only=True):
    """The fate of one training group and its tickets. `lost`: it was issued, and nothing says what became of it."""

    group: str
    state: Literal["trained", "dropped", "in flight", "forgotten", "lost"]
    step: int | None = None
    """The learner step that trained it, or whose manifest lists the drop. None before that."""
    reason: str = ""
    """The reason why it was dropped or forgotten."""
    age: int | None = None
    """Age in learner steps of its oldest token when it was trained."""
    tickets: dict[str, Literal["played", "unplayed"]] = {}
    """Ticket id -> whether its episode is in the archive."""


@dataclass(slots=True, kw_only=True)
class Archived:
    """The episodes of one group in one file of the archive."""

    step: int
    outcome: str
    reason: str
    members: set[int] = field(default_factory=set)
    oldest: int = 1 << 60
    """The lowest policy step that sampled any token."""


class Audit(msgspec.Struct, kw_only=True):
    """The result: one fate for each group in order of issue, and the findings."""

    fates: list[Fate]
    evaluations: int
    """Evaluations whose episodes are all in the archive."""
    findings: list[str]
    notes: list[str]
    """The parts that could not be checked, with the reason."""


def audit(folder: RunFolder, config: Config, journal: Journal | None) -> Audit:
    """Checks a run. `journal`: the store's own record, None if the store cannot be reached.

    Read the journal before calling this, so that the files hold every step that the journal knows.
    Raises Damaged for a broken archive.
    """
    rows, metrics = read_rows(folder.ledger), read_metrics(folder.metrics)
    evaluations = [row for row in read_evaluations(folder.evaluations) if not row.get(GIVEN)]
    archived, evaluated = read_archive(folder)  # last, and it takes longest: a run in progress writes into it first
    manifests, findings = _manifests(rows, journal, archived)
    seen = {row["step"] for row in metrics}
    resets = [row["reset_to_group"] for row in rows if "reset_to_group" in row]
    fates = _fates(manifests, journal, archived, resets=resets)
    notes: list[str] = []
    if journal is None and max(seen, default=0) < config.steps:
        last = max((number for number, fate in fates.items() if fate.state == "trained"), default=-1)
        fates = {number: fate for number, fate in fates.items() if number <= last}
        notes.append("the run has not finished, and its store cannot be reached: "
                     + (f"groups after number {last} are not judged" if fates else "no group is judged"))
    for fate in fates.values():
        findings += _wrong(fate, config)
        fate.tickets = _tickets(fate, archived.get(fate.group, []), config.learner.group_size)
    durable = {step for step in manifests if step in seen}
    findings += [f"{group} has no complete episodes in the archive of step {step}"
                 for step in sorted(durable) for group in manifests[step].groups
                 if "unplayed" in fates[_number(group)].tickets.values()]
    findings += [f"step {step} has a line in metrics.jsonl and no manifest" for step in sorted(seen - set(manifests))]
    findings += RunHistory(folder).damage
    wrong = list(_evaluations(evaluations, evaluated))
    return Audit(fates=[fates[number] for number in sorted(fates)], findings=findings + wrong, notes=notes,
                 evaluations=len(evaluations) - len(wrong))


def read_archive(folder: RunFolder) -> tuple[dict[str, list[Archived]], dict[str, int]]:
    """Returns what each file holds of each training group, and the episodes of each evaluation by `<label>-T<t>`."""
    groups: dict[str, list[Archived]] = defaultdict(list)
    evaluated: dict[str, int] = {}
    for path, step, part_of in archive_files(folder.path):
        here: dict[str, Archived] = {}
        episodes: set[tuple[str, int]] = set()
        try:
            with open_parquet(path, rows=ARCHIVE_ROWS) as file:
                table = read_table(file, path, COLUMNS)
        except (OSError, ValueError) as error:  # pyarrow's errors are among these
            raise Damaged(f"{path} cannot be read ({described(error)})", "restore it, then audit again") from None
        for row in table.to_pylist():
            if not _VERSIONS.fullmatch(str(row["version"])):
                raise Damaged(f"{path} has the version {str(row['version'])[:40]!r}", "restore it, then audit again")
            episodes.add((row["group"], row["k"]))
            if row["outcome"] != "evaluated":
                part = here.setdefault(row["group"], Archived(
                    step=step, outcome=row["outcome"], reason=row["reason"]))
                part.members.add(row["k"])
                part.oldest = min(part.oldest, *_steps_of(row))
        if not here and part_of:
            evaluated[part_of] = len(episodes)
        for group, part in here.items():
            if group.startswith("train/"):
                groups[group].append(part)
    return groups, evaluated


def _steps_of(row: Mapping[str, Any]) -> Iterator[int]:
    return (int(version.partition(".")[2]) for version in row["version"].split(",") if version)


def _manifests(rows: Sequence[MetricsRow], journal: Journal | None,
               archived: Mapping[str, list[Archived]]) -> tuple[dict[int, Manifest], list[str]]:
    """Returns manifests by step, and a finding for each step of which two records name different groups.

    Without manifests in the ledger and without a journal, they are made from the archive.
    """
    recorded = [msgspec.convert({key: row[key] for key in Manifest.__struct_fields__}, Manifest)
                for row in rows if "groups" in row]
    if not recorded and journal is None:
        steps: dict[int, list[str]] = defaultdict(list)
        for group in sorted(archived):
            for part in archived[group]:
                if part.outcome == "trained":
                    steps[part.step].append(group)
        recorded = [Manifest(step=step, incarnation=0, groups=steps[step], drops=[]) for step in sorted(steps)]
    manifests: dict[int, Manifest] = {}
    findings: list[str] = []
    for manifest in (*recorded, *(journal.manifests.values() if journal else ())):
        earlier = manifests.setdefault(manifest.step, manifest)
        if earlier.groups != manifest.groups:
            findings.append(f"step {manifest.step} was trained on {', '.join(earlier.groups)} and again on "
                            f"{', '.join(manifest.groups)}")
    return manifests, findings


def _fates(manifests: Mapping[int, Manifest], journal: Journal | None, archived: Mapping[str, list[Archived]], *,
           resets: Sequence[int]) -> dict[int, Fate]:
    """Returns fates by the number of the group. A second fate of a trained group is noted in its reason, which makes it
    a finding."""
    fates: dict[int, Fate] = {}

    def add(fate: Fate) -> None:
        earlier = fates.setdefault(_number(fate.group), fate)
        if earlier is not fate:
            at = "" if fate.step is None else f" at step {fate.step}"
            earlier.reason = f"{earlier.reason} and {fate.state}{at}".strip()

    for step in sorted(manifests):
        for group in manifests[step].groups:
            ages = [step - 1 - part.oldest for part in archived.get(group, ()) if part.step == step]
            add(Fate(group=group, state="trained", step=step, age=max(ages, default=None)))
    for step in sorted(manifests):  # after all trained groups, so that one that is dropped too is a finding
        for drop in manifests[step].drops:
            if drop.group.startswith("train/"):
                add(Fate(group=drop.group, state="dropped", step=step, reason=drop.reason))
    newest = max(journal.manifests, default=0) if journal else 0
    for fate in _unfinished(journal) if journal else ():
        earlier = fates.get(_number(fate.group))
        if earlier is None or (earlier.step or 0) <= newest:  # a later manifest is newer than the journal
            add(fate)
    for group, parts in archived.items():
        if _number(group) not in fates and parts[0].outcome == "dropped":
            fates[_number(group)] = Fate(group=group, state="dropped", reason=parts[0].reason)
    issued = journal.issued if journal else max(fates, default=-1) + 1
    for number in set(range(issued)) - set(fates):
        group = f"train/{number:08d}"
        forgotten = any(number < end for end in resets)
        fates[number] = Fate(group=group, state="forgotten", reason="the store was reset to a checkpoint") \
            if forgotten else Fate(group=group, state="lost")
    return fates


def _unfinished(journal: Journal) -> Iterator[Fate]:
    """Yields the fates of the training groups that no manifest of the journal has."""
    for drop in journal.drops:
        if drop.group.startswith("train/"):
            yield Fate(group=drop.group, state="dropped", reason=drop.reason)
    for group in journal.in_flight:
        yield Fate(group=group, state="in flight")


def _number(group: str) -> int:
    return int(group.removeprefix("train/"))


def _wrong(fate: Fate, config: Config) -> Iterator[str]:
    if fate.state == "trained" and fate.reason:
        yield f"{fate.group} was trained at step {fate.step} {fate.reason}"
    if fate.state == "dropped" and not fate.reason:
        yield f"{fate.group} was dropped without a reason"
    if fate.state == "lost":
        yield f"{fate.group} is lost: it was issued, and it was neither trained nor dropped"
    if fate.age is not None and fate.age > config.learner.staleness:
        yield (f"{fate.group} was trained at step {fate.step} with tokens that are {number_of(fate.age, 'step')} old; "
               f"learner.staleness is {config.learner.staleness}")


def _tickets(fate: Fate, parts: Sequence[Archived], size: int) -> dict[str, Literal["played", "unplayed"]]:
    step = fate.step if fate.state == "trained" else None
    members = {k for part in parts if step in (None, part.step) for k in part.members}
    return {f"{fate.group}#{k}": "played" if k in members else "unplayed" for k in range(size)}


def _evaluations(rows: Sequence[MetricsRow], evaluated: Mapping[str, int]) -> Iterator[str]:
    for row in rows:
        archived = evaluated.get(evaluation_part(row["label"], row["temperature"]), 0)
        if archived < row["episodes"]:
            yield (f"{title_of(row['label'])}, T={row['temperature']:g}: {archived} of {row['episodes']} "
                   "episodes are in the archive")
