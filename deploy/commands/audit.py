"""Follows every ticket of a run to its end: its episode, the learner step that trained its group,
or why the group was dropped. Exits with 1 if a group was trained twice, lost without a reason, or trained
on older episodes than learner.staleness allows. Works on finished and on active runs.

examples:
  gagpo audit runs/alfworld-tiny
  gagpo audit runs/alfworld-tiny --groups | grep dropped
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from typing import TYPE_CHECKING

from deploy.commands.arguments import add_run_argument
from deploy.console.plain import printable
from deploy.runs.folder import is_own, withheld
from deploy.runs.policies import find_begun
from services.amounts import number_of
from services.errors import StoreFault

if TYPE_CHECKING:
    from deploy.runs.audit import Audit, Fate
    from deploy.runs.folder import RunFolder
    from services.config.tree import Config
    from services.store.step_log import Journal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    add_run_argument(parser)
    parser.add_argument("--groups", action="store_true", help="print one line for each group")
    parser.add_argument("--json", action="store_true", help="print one JSON object, with every ticket")


def run(args: argparse.Namespace) -> int:
    """Prints the audit. Returns 1 if there are findings."""
    import msgspec

    from deploy.runs.audit import audit
    from deploy.runs.configs import light_config

    folder = find_begun(args.run_folder)
    config = light_config(folder.config_file)
    result = audit(folder, config, read_journal(folder, config))
    if args.json:
        print(json.dumps({"format": 1, **msgspec.to_builtins(result)}))
    else:
        print(printable("\n".join([*(line(fate) for fate in result.fates if args.groups), *summary(result)])))
    return 1 if result.findings else 0


def read_journal(folder: RunFolder, config: Config) -> Journal | None:
    """Returns the store's journal. None: the run has not begun, or its Redis does not answer or no longer holds it."""
    from services.config.redis import redis_url
    from services.store.connection import briefly
    from services.store.redis_server import url_served_from
    from services.store.store import Store

    record = folder.identity()
    if record is None:
        return None
    redis = config.redis
    if redis.password_file is not None and not is_own(folder):
        print(printable(withheld("redis.password_file", folder)), file=sys.stderr)
        redis = redis.model_copy(update={"password_file": None})
    url = redis_url(redis) or url_served_from(folder.path / "redis")
    if url is None:
        return None
    try:
        journal = Store(url, record.run, settings=briefly(config.redis)).steps.journal()
    except StoreFault:
        return None
    return journal if journal.issued else None


def line(fate: Fate) -> str:
    """Returns one group as a line for grep."""
    played = sum(state == "played" for state in fate.tickets.values())
    at = "" if fate.step is None else f" at step {fate.step}"
    age = "" if fate.age is None else f", {number_of(fate.age, 'step')} old"
    reason = f": {fate.reason}" if fate.reason else ""
    return f"{fate.group}  {played}/{len(fate.tickets)} episodes  {fate.state}{at}{age}{reason}"


def summary(result: Audit) -> list[str]:
    """Returns counts, notes and findings as lines. A run that has trained no group is not called clean."""
    states = Counter(fate.state for fate in result.fates)
    counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
    oldest = max((fate.age for fate in result.fates if fate.age is not None), default=0)
    age = f"; the oldest tokens trained on were {number_of(oldest, 'step')} old" if states["trained"] else ""
    good = "clean: no group was lost or trained twice" if states["trained"] else \
        "nothing wrong, and nothing to judge yet: no group was trained"
    return [
        f"{number_of(len(result.fates), 'group')} issued: {counts or 'none'}{age}",
        f"{number_of(result.evaluations, 'evaluation')} with all their episodes",
        *(f"note: {note}" for note in result.notes),
        *(f"wrong: {finding}" for finding in result.findings),
        number_of(len(result.findings), "finding") if result.findings else good,
    ]
