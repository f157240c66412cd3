"""Shows the stage of a run, its last learner step and its first, best and last evaluations. While
it is active: each of its processes, with the weights held, the speed, the last progress, and what it
waits for. After an interruption: the command that continues it. At the end: the verdict and the next
commands.

examples:
  gagpo status alfworld-tiny
  gagpo status runs/alfworld-tiny --watch
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from deploy.commands.arguments import add_run_argument
from deploy.console.plain import answer_shares, printable
from deploy.runs.comparison import (
    REPEATED,
    RULES,
    Kind,
    evaluation_kind,
    next_commands,
    repeats,
    rule_scores,
    stand_in_notes,
    verdicts,
)
from deploy.runs.configs import light_config
from deploy.runs.folder import RunFolder, resume_command
from deploy.runs.health import warnings
from deploy.runs.history import RunHistory
from deploy.runs.live_status import Seen, look, silent, value, withheld_token
from deploy.runs.policies import find_run
from deploy.runs.stage import ENDED_WELL, read_stage
from deploy.runs.step_times import MeanStep, as_line, step_times
from services.amounts import number_of, rounded, span
from services.controller.member import STATES
from services.process.packages import program
from services.telemetry.evaluations import ENVIRONMENTS, env_scores, on_curve, title_of
from services.telemetry.heartbeat import BEAT_S, Beat
from services.telemetry.task_types import ENV_PREFIX, LAST_STEPS, recent_results, type_weight

WATCH_S = 2.0
APART_S = BEAT_S + 0.5
"""Seconds between the first two readings: in them every process sends another heartbeat."""
WORDS = {"unplaced": "waiting for room on the cluster", "draining": "finishing their work"}
LAST = 5
"""Number of the curve's last evaluations that are shown."""
SHARES = ("invalid_share", "inadmissible_share", "cut_share")
"""Shares of bad answers, of the last step and of each evaluation. None in rows of older versions."""
FINISHED, GOING_ON, INTERRUPTED = "finished", "going on", "interrupted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    add_run_argument(parser)
    parser.add_argument("--watch", action="store_true", help="again every two seconds, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Prints the status. It reads an active run twice, a heartbeat apart, so that it can show rates.

    Returns 1 if lines of the run's files are damaged.
    """
    folder = find_run(args.run_folder)
    history, seen = RunHistory(folder), Seen()
    for note in withheld_token(folder.path):
        print(printable(note), file=sys.stderr)
    try:
        seen.take(look(folder.path))
        if seen.now:
            time.sleep(APART_S)
            seen.take(look(folder.path))
        while True:
            status = read_status(find_run(args.run_folder), history)  # it may have been moved meanwhile
            _show(status, seen, folder.path, args)
            if not args.watch:
                return int(bool(status["damaged"]))
            time.sleep(WATCH_S)
            seen.take(look(folder.path))
    except KeyboardInterrupt:
        if not args.watch:
            raise
        return 0  # Ctrl-C is the documented end of --watch


def _show(status: Mapping[str, Any], seen: Seen, run_folder: Path, args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps({"format": 1, **status, "processes": processes(seen)}), flush=True)
        return
    clear = "\x1b[H\x1b[2J" if args.watch and sys.stdout.isatty() else ""
    lines = [*summary(status), *(table(seen, ranks=status["learner_ranks"]) or silent(run_folder))]
    print(clear + printable("\n".join(lines)), flush=True)


def summary(status: Mapping[str, Any]) -> list[str]:
    """Returns the state of the run, its evaluations, its warnings, and the verdict or the next command, in lines."""
    lines = [f"{status['run']}: {_case(status)}, learner step {status['step']} of {status['steps']}"]
    if status["seconds_since_step"] is not None:
        lines[0] += f", version {status['version']}"
        if None not in (status["staleness_mean"], status["staleness_max"]):
            lines[0] += f", trained on episodes {status['staleness_mean']:.2g} steps old (at most " \
                        f"{status['staleness_max']:.0f})"
        won = "" if status["success_rate"] is None else f", success {status['success_rate']:.1%}"
        lines.append(f"  last step {span(status['seconds_since_step'])} ago{won}  {answer_shares(status)}".rstrip())
    if status["step_times"] is not None:
        lines.append(f"  time: {as_line(MeanStep(**status['step_times']))}")
    if status["doing"] and status["state"] == GOING_ON:
        lines.append(f"  {status['doing']}")
    lines += [f"  task type {name}: weight {one['weight']:.2f}, success {one['success']:.1%} in "
              f"{number_of(one['groups'], 'group')} of the last {LAST_STEPS} steps"
              for name, one in status["task_types"].items()]
    lines += [f"  environment {name}: success {one['success']:.1%} in {number_of(one['groups'], 'group')} of the last "
              f"{LAST_STEPS} steps" for name, one in status.get("environments", {}).items()]
    lines += _evaluations(status["evaluations"], status["run"])
    lines += [f"  {note}" for note in status["stand_ins"]]
    lines += [f"  warning: {text}" for text in status["warnings"]]
    lines += [f"  damaged: {text}" for text in status["damaged"]]
    lines += [f"  verdict: {text}" for text in status["verdicts"]]
    return lines + (["  next:", *(f"    {command}" for command in status["next"])] if status["next"] else [])


def _evaluations(rows: Sequence[Mapping[str, Any]], run_folder: str) -> list[str]:
    """Returns the lines of the final table's evaluations, and of each curve's first, best and LAST evaluations."""
    kinds: dict[Kind, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        if on_curve(row["label"]):
            kinds[evaluation_kind(row)].append(index)
    shown = {index for index, row in enumerate(rows) if not on_curve(row["label"])}
    for curve in kinds.values():
        shown |= {curve[0], max(curve, key=lambda index: rows[index]["success_rate"]), *curve[-LAST:]}
    lines = [f"  {title_of(row['label'])}, T={row['temperature']:g}: {row['success_rate']:.1%} "
             f"[{row['success_low']:.1%}, {row['success_high']:.1%}] on {number_of(row['tasks'], 'game')} of "
             f"{row['split']}{''.join(f', {text}' for text in (*env_scores(row), *repeats(row), *rule_scores(row)))}"
             f"  {answer_shares(row)}".rstrip()
             for index, row in enumerate(rows) if index in shown]
    return lines if len(shown) == len(rows) else [
        *lines, f"  shown: the first, the best and the last {LAST} of the curve; {len(rows) - len(shown)} more: "
                f"{program()} explore {shlex.quote(run_folder)}"]


def _case(status: Mapping[str, Any]) -> str:
    """`cold start for 45 s`, `interrupted by Ctrl-C 3 min ago during the cold start`, `finished`."""
    state, stage = status["state"], status["stage"]
    if stage is None or state == FINISHED:
        return state
    if state == GOING_ON:
        return f"{stage} for {span(status['stage_seconds'])}"
    how = status["ended"] or f"{INTERRUPTED}: its process is gone"
    return f"{how}, {span(status['silent_seconds'])} ago, in the stage `{stage}`"


def read_status(folder: RunFolder, history: RunHistory) -> dict[str, Any]:
    """Returns the status of a run from its folder. `history`: that of the same folder; reads only what was added."""
    config = light_config(folder.config_file)
    metrics, evaluations = history.metrics, history.evaluations
    last = metrics[-1] if metrics else None
    shown = ("label", "split", "temperature", "success_rate", "success_low", "success_high", "tasks")
    stage, now = read_stage(folder.stage_file), time.time()
    done = folder.summary.exists() and (stage is None or stage.ended == ENDED_WELL)
    state = (GOING_ON if stage is not None and stage.alive else FINISHED if done else
             INTERRUPTED if stage is not None else "not finished")
    return {
        "run": str(folder.path),
        "state": state,
        "stage": stage.name if stage else None,
        "stage_seconds": _since(stage.since, now) if stage else None,
        "silent_seconds": _since(stage.at, now) if stage else None,
        "doing": stage.doing if stage else "",
        "ended": stage.ended if stage else "",
        "step": last["step"] if last else 0,
        "steps": config.steps,
        **{name: last[name] if last else None for name in ("version", "staleness_mean", "staleness_max")},
        "learner_ranks": config.learner.ranks,
        "seconds_since_step": _since(last["time"], now) if last and last["time"] else None,
        "success_rate": last["success_rate"] if last else None,
        "step_times": asdict(times) if (times := step_times(metrics)) else None,
        **{name: last.get(name) if last else None for name in SHARES},
        "task_types": {name: {**asdict(result), "weight": type_weight(result)}
                       for name, result in recent_results(metrics, last["step"] if last else 0).items()},
        "environments": {name: asdict(result) for name, result in recent_results(
            metrics, last["step"] if last else 0, ENV_PREFIX).items()},
        "evaluations": [{key: e[key] for key in shown} | {name: e.get(name) for name in SHARES}
                        | {key: e[key] for key in (*ENVIRONMENTS, *REPEATED, *RULES) if key in e} for e in evaluations],
        "stand_ins": stand_in_notes(evaluations),
        "warnings": [one.text for one in warnings(
            metrics, evaluations, config.learner.credit, agents=config.agent.name is not None)],
        "damaged": history.damage,
        "verdicts": [one.text for one in verdicts(evaluations)],
        "next": [] if state == GOING_ON else next_commands(folder.path, evaluations) if state == FINISHED else
                [resume_command(folder.path)],
    }


def _since(then: float, now: float) -> float:
    """Returns the seconds since a Unix time; 0 if it is in the future, since clocks are set back or differ."""
    return max(0.0, now - then)


def processes(seen: Seen) -> list[dict[str, Any]]:
    """Returns one JSON object per process: its last heartbeat without the metrics, and its rate."""
    rows: list[dict[str, Any]] = []
    for name, beat in seen.now.items():
        number, unit = seen.rate(name) or (None, None)
        rows.append({"name": name, "rate": number, "rate_unit": unit} | {
            key: value for key, value in msgspec.to_builtins(beat).items() if key != "metrics"})
    return rows


def table(seen: Seen, *, ranks: int = 1) -> list[str]:
    """Returns one line per process; [] if none answers. The line of the learner's first rank stands for all `ranks`,
    which work and end together."""
    if not seen.now:
        return []
    names = {name: f"learner-0..{ranks - 1}" if name == "learner-0" and ranks > 1 else name for name in seen.now}
    now, width = time.time(), max(14, *(len(name) for name in names.values()))
    lines = [f"  {'process':<{width}} {'version':<18} {'lag':>4} {'speed':>14} {'progress':>9}  doing"]
    for name, beat in seen.now.items():
        lag = value(beat, "gagpo_rollout_version_lag_steps")
        progress = f"{_since(beat.progress, now):.0f} s" if beat.progress else "-"
        since = f" ({_since(beat.since, now):.0f} s)" if beat.since else ""
        lines.append(f"  {names[name]:<{width}} {beat.version or '-':<18} {'-' if lag is None else f'{lag:.0f}':>4} "
                     f"{speed(seen, name):>14} {progress:>9}  {beat.doing}{since}")
    driver = seen.now.get("controller")
    lines += [f"  sick: {line}" for line in (driver.sick if driver else ())] + _roles(driver)
    return lines + _backlog(seen.now)


def speed(seen: Seen, name: str) -> str:
    """Returns `123 tokens/s`, `45 steps/s` or `6.7 s a step`; a dash if there is none."""
    rate = seen.rate(name)
    return "-" if rate is None else f"{rounded(rate[0])} {rate[1]}"


def _roles(driver: Beat | None) -> list[str]:
    """Returns a line for each role whose processes do not all run, or are about to be removed."""
    lines: list[str] = []
    for role, name in (("rollout", "rollout workers"), ("environment", "environment servers")):
        wanted = None if driver is None else value(driver, "gagpo_controller_wanted_members", role=role)
        if driver is None or not wanted:
            continue
        counts = {state: value(driver, "gagpo_controller_members", role=role, state=state) or 0 for state in STATES}
        if counts["running"] != wanted or counts["draining"]:
            others = ", ".join(f"{counts[state]:.0f} {WORDS.get(state, state)}" for state in STATES
                               if state != "running" and counts[state])
            lines.append(f"  {name}: {wanted:.0f} wanted, {counts['running']:.0f} running, {others}")
    return lines


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
