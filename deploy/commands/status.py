"""`gagpo status`: how a run stands, from its folder and, while it goes on, from its heartbeats."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from deploy.runs.configs import load_config
from deploy.runs.folder import RunFolder
from deploy.runs.history import RunHistory
from deploy.runs.live_status import Seen, look, value
from services.errors import UserError
from services.telemetry.heartbeat import BEAT_S, Beat

WATCH_S = 2.0
APART_S = BEAT_S + 0.5
"""Between the first two looks: every process has had another heartbeat."""


def add_parser(subparsers: argparse._SubParsersAction) -> None:  # pyright: ignore[reportPrivateUsage]
    """Registers the command."""
    parser = subparsers.add_parser(
        "status",
        help="show how a run stands",
        description="Shows the last learner step and evaluation of a run, and while it goes on each of its processes,\n"
        "environment servers among them: weights held, speed, last progress, and what it waits for.",
        epilog="example:\n  gagpo status runs/alfworld-tiny --watch",
    )
    parser.add_argument("run_folder", metavar="RUN", type=Path)
    parser.add_argument("--watch", action="store_true", help="again every two seconds, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the status. A run that goes on is looked at twice, a heartbeat apart, so that there are rates."""
    seen = Seen()
    seen.take(look(args.run_folder))
    if seen.now:
        time.sleep(APART_S)
        seen.take(look(args.run_folder))
    while True:
        status = read_status(args.run_folder)
        if args.json:
            print(json.dumps({"format": 1, **status, "processes": processes(seen)}), flush=True)
        else:
            clear = "\x1b[H\x1b[2J" if args.watch and sys.stdout.isatty() else ""
            print(clear + "\n".join([*summary(status), *table(seen, ranks=status["learner_ranks"])]), flush=True)
        if not args.watch:
            return 0
        time.sleep(WATCH_S)
        seen.take(look(args.run_folder))


def summary(status: Mapping[str, Any]) -> list[str]:
    """Where the run stands, and its evaluations."""
    lines = [f"{status['run']}: {status['state']}, step {status['step']} of {status['steps']}"]
    if status["seconds_since_step"] is not None:
        lines[0] += f", version {status['version']}"
        if status["staleness_mean"] is not None:
            lines[0] += f", trained on episodes {status['staleness_mean']:.2g} steps old (at most " \
                        f"{status['staleness_max']:.0f})"
        lines.append(f"  last step {status['seconds_since_step']:.0f} s ago, success {status['success_rate']:.1%}")
    return lines + [f"  {line['label']} T={line['temperature']:g}: {line['success_rate']:.1%} "
                    f"[{line['success_low']:.1%}, {line['success_high']:.1%}] on {line['tasks']} games"
                    for line in status["evaluations"]]


def read_status(path: Path) -> dict[str, Any]:
    """What the run's folder says. Raises UserError where it is none."""
    folder = RunFolder(path)
    if not folder.config_file.exists():
        raise UserError(f"{path} is no run's folder", "give runs/<name>")
    config = load_config(folder.config_file)
    history = RunHistory(folder)
    metrics, evaluations = history.metrics, history.evaluations
    last = metrics[-1] if metrics else None
    shown = ("label", "temperature", "success_rate", "success_low", "success_high", "tasks")
    return {
        "run": str(path),
        "state": "finished" if folder.summary.exists() else "not finished",
        "step": last["step"] if last else 0,
        "steps": config.steps,
        **{name: last[name] if last else None for name in ("version", "staleness_mean", "staleness_max")},
        "learner_ranks": config.learner.ranks,
        "seconds_since_step": time.time() - last["time"] if last else None,
        "success_rate": last["success_rate"] if last else None,
        "evaluations": [{key: e[key] for key in shown} for e in evaluations],
    }


def processes(seen: Seen) -> list[dict[str, Any]]:
    """One object per process, for machines."""
    found: list[dict[str, Any]] = []
    for name, beat in seen.now.items():
        number, unit = seen.rate(name) or (None, None)
        found.append({"name": name, "rate": number, "rate_unit": unit} | {
            key: value for key, value in msgspec.to_builtins(beat).items() if key != "metrics"})
    return found


def table(seen: Seen, *, ranks: int = 1) -> list[str]:
    """One line per process. `ranks`: of the learner, whose first one speaks for all: they work in step or end."""
    if not seen.now:
        return ["  no process answers: the run has ended, has not begun to play, or runs where this one cannot reach"]
    names = {name: f"learner-0..{ranks - 1}" if name == "learner-0" and ranks > 1 else name for name in seen.now}
    now, width = time.time(), max(14, *(len(name) for name in names.values()))
    lines = [f"  {'process':<{width}} {'version':<18} {'lag':>4} {'speed':>14} {'progress':>9}  doing"]
    for name, beat in seen.now.items():
        lag = value(beat, "gagpo_rollout_version_lag_steps")
        progress = f"{now - beat.progress:.0f} s" if beat.progress else "-"
        since = f" ({now - beat.since:.0f} s)" if beat.since else ""
        lines.append(f"  {names[name]:<{width}} {beat.version or '-':<18} {'-' if lag is None else f'{lag:.0f}':>4} "
                     f"{speed(seen, name):>14} {progress:>9}  {beat.doing}{since}")
    return lines + _backlog(seen.now)


def speed(seen: Seen, name: str) -> str:
    """`123 tokens/s`, `45 steps/s`, `6.7 s a step`; a dash where none is known."""
    found = seen.rate(name)
    return "-" if found is None else f"{found[0]:,.3g} {found[1]}" if found[0] < 1000 else f"{found[0]:,.0f} {found[1]}"


def _backlog(beats: Mapping[str, Beat]) -> list[str]:
    driver = beats.get("controller")
    if driver is None:
        return []
    figures = [value(driver, "gagpo_store_tickets", state="waiting"),
               value(driver, "gagpo_store_tickets", state="claimed"),
               value(driver, "gagpo_store_groups_ready", kind="train"),
               value(driver, "gagpo_controller_capacity_groups")]
    waiting, claimed, ready, free = (0.0 if figure is None else figure for figure in figures)
    return [f"  store: {waiting:.0f} tickets wait, {claimed:.0f} are played, {ready:.0f} groups are ready, "
            f"{free:.0f} may be issued"]
