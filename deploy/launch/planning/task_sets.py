"""Selects the task sets of a run: fixed lists from the environment's splits, the same on every machine."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from envservice.base import Environment
from envservice.checks import check_apart, tasks_of
from envservice.mixture import Mixture
from envservice.registry import open_environment, stands_in_for
from services.config.tree import Config
from services.controller.task_streams import MixedStream, TaskStream
from services.errors import UserError
from services.seeds import seed_for

HELDOUT = "heldout"
"""Name by which the games of the final report are drawn, whatever their split is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSets:
    """Tasks for training, for the learning curve (validation) and for the final report (heldout). The last set overlaps
    neither other set, but with eval.on_panel it is the validation set too."""

    env_name: str
    engine: str
    """Engine and version, such as `own 1+catalogue+endings-1`. A score depends on both, and not only on the task."""
    train: tuple[str, ...]
    validation: tuple[str, ...]
    validation_split: str
    heldout: tuple[str, ...]
    heldout_split: str
    heldout_digest: str
    games: str
    """Description of the games for people: their number, a digest over the training games' ids, and the engine."""
    environment: Environment = field(compare=False)
    """The environment, whose splits were read."""

    def stream(self, config: Config) -> TaskStream | MixedStream:
        """Returns the training tasks in the order of a run: those of several environments by their weights."""
        return task_stream(config, self.environment, self.train)


def views(config: Config, task_sets: TaskSets) -> Iterator[tuple[Config, Environment, tuple[str, ...]]]:
    """Yields each environment of a run with the config that has it alone, and its training tasks."""
    if not isinstance(mixture := task_sets.environment, Mixture):
        yield config, task_sets.environment, task_sets.train
        return
    for view, (name, tasks) in zip(config.views, mixture.by_part(task_sets.train).items(), strict=True):
        yield view, mixture.parts[name], tuple(tasks)


def task_stream(config: Config, environment: Environment, train: Sequence[str]) -> TaskStream | MixedStream:
    """Returns the endless sequence of an environment's training tasks in a run. See TaskSets.stream."""
    if not isinstance(environment, Mixture):
        return TaskStream(train, config.seed)
    by_part = environment.by_part(train).values()
    return MixedStream([(entry.weight, TaskStream(tasks, config.seed))
                        for entry, tasks in zip(config.env.entries, by_part, strict=True)])


def engine_name(environment: Environment) -> str:
    """Returns the engine's name as results and episodes record it."""
    return f"{environment.engine} {environment.version}"


def cut(tasks: Sequence[str], count: int, *, name: str) -> tuple[str, ...]:
    """Returns a random sample of `count` tasks, sorted. Raises ValueError if there are fewer.

    The sample depends on the set's name and never on the run's seed, so that runs can be compared.
    """
    return tuple(sorted(random.Random(seed_for("panel", name)).sample(sorted(tasks), count)))


class AskedGames(NamedTuple):
    """Games that a key asks for."""

    key: str
    asked: int
    split: str
    tasks: Sequence[str]
    """All games of the split, of the chosen kinds."""


def check_enough(*wanted: AskedGames) -> None:
    """Raises UserError that names all keys that ask for more games than there are."""
    short = [one for one in wanted if one.asked > len(one.tasks)]
    if short:
        lacks = ", ".join(f"{one.key} asks for {one.asked:,} and the {one.split} split has {len(one.tasks):,}"
                          for one in short)
        raise UserError(f"too few games of the chosen kinds: {lacks}",
                        f"lower {'it' if len(short) == 1 else 'them'}, or choose more games by the settings in env"
                        + _published(short[0].tasks))


def of_a_step(config: Config, train: Sequence[str]) -> AskedGames:
    """Returns the games that a learner step takes of those to train on."""
    return AskedGames("learner.groups_per_step", config.learner.groups_per_step, "train", train)


def _published(tasks: Sequence[str]) -> str:
    """Returns one more fix for too few games, if these stand in for published ones, such as ALFWorld's; else ""."""
    published = stands_in_for(tasks[0].partition("/")[0]) if tasks else None
    return f", or set env.data to the data of {published}, which has other games" if published else ""


def asked_games(key: str, count: int, split: str, environment: Environment, tasks: Sequence[str]) -> list[AskedGames]:
    """Returns the games of an evaluation that `key` asks for: `count` of `tasks`, which are those of the split.

    With several environments it asks for equally many of each. The first ones get one more each for the remainder.
    """
    if not isinstance(environment, Mixture):
        return [AskedGames(key, count, split, tasks)]
    by_part = environment.by_part(tasks)
    each, rest = divmod(count, len(by_part))
    return [AskedGames(f"{key} ({name})", each + (number < rest), split, its)
            for number, (name, its) in enumerate(by_part.items())]


def cut_each(asked: Sequence[AskedGames], *, name: str) -> tuple[str, ...]:
    """Returns the games that are asked for, as `cut` chooses them, sorted."""
    return tuple(sorted(task for one in asked for task in cut(one.tasks, one.asked, name=name)))


def asked_for(environment: Environment, split: str | None, count: int) -> tuple[str, tuple[str, ...]]:
    """Returns a split, the held-out one for None, and the `count` tasks of it that an evaluation plays; 0: all.

    From the held-out split it takes those of a run's final table, so that scores can be compared. Raises UserError.
    """
    heldout = environment.training_splits()[2]
    everything = tasks_of(environment, chosen := split or heldout)
    name = HELDOUT if chosen == heldout else chosen
    asked = asked_games("--episodes (eval.panel)", count, chosen, environment, everything)
    check_enough(*(one._replace(split=name) for one in asked))
    return chosen, cut_each(asked, name=name) if count else tuple(sorted(everything))


def open_task_sets(config: Config) -> TaskSets:
    """Reads the splits of the run's environment.

    Raises UserError for missing data, splits that share a task, sets and learner steps that ask for more games than
    there are, and evaluations on an empty panel.
    """
    if config.eval.on_panel and not config.eval.panel:
        raise UserError("eval.on_panel is true, and eval.panel=0 leaves no games to evaluate on", "set eval.panel")
    environment = open_environment(config.env)
    train, validation, heldout = environment.training_splits()
    splits = {split: tasks_of(environment, split) for split in (train, validation, heldout)}
    check_apart(environment, splits)
    training = splits[train]
    engine = engine_name(environment)
    ids = hashlib.blake2b("\n".join(training).encode(), digest_size=4).hexdigest()
    evaluated = asked_games("eval.episodes", config.eval.episodes, validation, environment, splits[validation])
    reported = asked_games("eval.panel", config.eval.panel, heldout, environment, splits[heldout])
    check_enough(*(one._replace(split=HELDOUT) for one in reported),
                 *(one._replace(split="validation") for one in evaluated if not config.eval.on_panel),
                 of_a_step(config, training))
    panel = cut_each(reported, name=HELDOUT)
    return TaskSets(
        env_name=environment.name,
        engine=engine,
        games=f"{len(training)} games of {environment.name} ({ids}), {engine}",
        train=tuple(training),
        validation=panel if config.eval.on_panel else cut_each(evaluated, name="validation"),
        validation_split=heldout if config.eval.on_panel else validation,
        heldout=panel,
        heldout_split=heldout,
        heldout_digest=environment.digest(heldout),
        environment=environment,
    )
