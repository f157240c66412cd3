"""Changes how many rollout workers and environment servers a run has. A run in progress follows
within seconds, without a restart; another one starts with these numbers. Removed workers finish their
episodes first. The sessions of removed servers are rebuilt on others, except those of a live
environment. Without numbers it prints them.

examples:
  gagpo scale alfworld-tiny
  gagpo scale runs/alfworld-tiny rollout=3 env=2
"""

from __future__ import annotations

import argparse
import json
import re

import msgspec

from deploy.commands.arguments import add_run_argument
from deploy.runs.configs import light_config
from deploy.runs.folder import resume_command
from deploy.runs.policies import find_run
from deploy.runs.stage import read_stage
from deploy.runs.wanted import WantedNumbers, numbers, read_wanted, write_wanted
from services.config.tree import Config
from services.errors import UserError

ROLES = {"rollout": "rollout workers", "env": "environment servers"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    add_run_argument(parser)
    parser.add_argument("numbers", nargs="*", metavar="ROLE=N", help="rollout=N or env=N")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Writes the numbers into the run's folder and prints them."""
    folder = find_run(args.run_folder)
    config, before = light_config(folder.config_file), read_wanted(folder)
    asked = dict(_number(word) for word in args.numbers)
    if "env" in asked and config.env.urls:
        raise UserError("the environment servers of this run are those of env.urls", "scale them where they run")
    for role in asked:
        if getattr(config.autoscale, role) is not None:
            raise UserError(f"autoscale.{role} chooses the number of {ROLES[role]} of this run",
                            f"continue with other bounds: {resume_command(folder.path)} autoscale.{role}=[1,8]")
    now = msgspec.structs.replace(before, **asked)
    if asked:
        write_wanted(folder, now)
    stage = read_stage(folder.stage_file)
    alive = stage is not None and stage.alive
    when = "" if alive else "; the run is stopped, and takes them when it continues"
    if args.json:
        print(json.dumps({"format": 1, "going_on": alive, **{role: _present(role, config, now) for role in ROLES}}))
        return 0
    print(", ".join(f"{ROLES[role]} {_change(role, config, before, now)}" for role in ROLES) + when)
    return 0


def _number(word: str) -> tuple[str, int]:
    role, _, count = word.partition("=")
    if role not in ROLES or not re.fullmatch(r"[1-9][0-9]{0,4}", count):
        raise UserError(f"{word!r} is no number of processes", "write rollout=N or env=N, with N from 1 to 99999")
    return role, int(count)


def _change(role: str, config: Config, before: WantedNumbers, now: WantedNumbers) -> str:
    old, new = _present(role, config, before), _present(role, config, now)
    return f"{new}" if old == new else f"{old} -> {new}"


def _present(role: str, config: Config, wanted: WantedNumbers) -> int:
    given = len(config.env.urls) if role == "env" else 0
    return given or getattr(numbers(config, wanted), role)
