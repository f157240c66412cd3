"""wanted.json: how many processes of each role a run should have. A run reads it while it runs, and on --resume.

Its numbers come from `gagpo scale` and from autoscaling. They hold over the config, also in a run that is resumed: a
supervisor repeats the first command, with the numbers of the first start. A resume with another number in its config is
a new decision, so the older one is dropped.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec

from deploy.runs.folder import RunFolder, earlier
from services.config.tree import Config
from services.controller.autoscale import within
from services.files import read_json, write_whole

Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]


class WantedNumbers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numbers of processes. None: as the config says."""

    rollout: Count | None = None
    """Rollout workers."""
    env: Count | None = None
    """Environment servers that the run starts."""


NOTHING_WANTED = WantedNumbers()


def read_wanted(folder: RunFolder) -> WantedNumbers:
    """Returns what wanted.json says; nothing if it is not there. Raises Damaged."""
    try:
        return read_json(folder.wanted, WantedNumbers)
    except FileNotFoundError:
        return NOTHING_WANTED


def write_wanted(folder: RunFolder, wanted: WantedNumbers) -> None:
    """Replaces wanted.json."""
    write_whole(folder.wanted, msgspec.json.encode(wanted) + b"\n")


class Numbers(NamedTuple):
    """How many processes of each role a run should have now."""

    rollout: int
    env: int


def numbers(config: Config, wanted: WantedNumbers = NOTHING_WANTED) -> Numbers:
    """Returns the wanted numbers, or those of the config where there is none, within the bounds of autoscaling."""
    return Numbers(within(wanted.rollout or config.rollout.workers, config.autoscale.rollout),
                   within(wanted.env or config.env.servers, config.autoscale.env))


def in_effect(config: Config) -> Config:
    """Returns the config with the numbers of processes with which its run would continue. Raises Damaged."""
    count = numbers(config, _still_wanted(config))
    return config.with_keys({"rollout.workers": count.rollout, "env.servers": count.env})


def forget_older(config: Config) -> None:
    """Drops wanted numbers that are older than a change of this number in the config. Raises Damaged.

    Call it before config.yaml in the run's folder is replaced: it is the config that the run had before.
    """
    folder = RunFolder(config.run_dir)
    if (kept := _still_wanted(config)) != read_wanted(folder):
        write_wanted(folder, kept)


def _still_wanted(config: Config) -> WantedNumbers:
    """Returns the wanted numbers of the run in the folder of `config`, but for those that its config replaces."""
    before, wanted = earlier(config), read_wanted(RunFolder(config.run_dir))
    if before is None:
        return wanted
    return WantedNumbers(rollout=wanted.rollout if before.rollout.workers == config.rollout.workers else None,
                         env=wanted.env if before.env.servers == config.env.servers else None)
