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

from deploy.run_folder import RunFolder
from services.config_file import load_config
from services.errors import UserError
from services.heartbeat import Beat
from services.metrics import read_evaluations, read_metrics

WATCH_S = 2.0
ANSWER_S = 10.0


def add_parser(subparsers: argparse._SubParsersAction) -> None:  # pyright: ignore[reportPrivateUsage]
    """Registers the command."""
    parser = subparsers.add_parser(
        "status",
        help="show how a run stands",
        description="Shows the last learner step and evaluation of a run, and while it goes on each of its processes:\n"
        "weights held, speed, last progress, and what it waits for.",
        epilog="example:\n  gagpo status runs/alfworld-tiny --watch",
    )
    parser.add_argument("run_folder", metavar="RUN", type=Path)
    parser.add_argument("--watch", action="store_true", help="again every two seconds, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the status."""
    before: dict[str, Beat] | None = None
    while True:
        status, beats = read_status(args.run_folder), read_beats(args.run_folder)
        if args.json:
            print(json.dumps({"format": 1, **status, "processes": processes(beats)}))
        else:
            clear = "\x1b[H\x1b[2J" if args.watch and sys.stdout.isatty() else ""
            print(clear + "\n".join([*_summary(status), *table(beats, before)]), flush=True)
        if not args.watch:
            return 0
        before = beats
        time.sleep(WATCH_S)


def _summary(status: Mapping[str, Any]) -> list[str]:
    lines = [f"{status['run']}: {status['state']}, step {status['step']} of {status['steps']}"]
    if status["seconds_since_step"] is not None:
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
    metrics, evaluations = read_metrics(folder.metrics), read_evaluations(folder.evaluations)
    last = metrics[-1] if metrics else None
    shown = ("label", "temperature", "success_rate", "success_low", "success_high", "tasks")
    return {
        "run": str(path),
        "state": "finished" if folder.summary.exists() else "not finished",
        "step": last["step"] if last else 0,
        "steps": config.steps,
        "seconds_since_step": time.time() - last["time"] if last else None,
        "success_rate": last["success_rate"] if last else None,
        "evaluations": [{key: e[key] for key in shown} for e in evaluations],
    }


def read_beats(path: Path) -> dict[str, Beat]:
    """The heartbeats of now by process, from the endpoint that the folder names; {} where no driver answers there."""
    import httpx

    targets = RunFolder(path).targets
    if not targets.exists():
        return {}
    address = json.loads(targets.read_text())[0]["targets"][0]
    try:
        reply = httpx.get(f"http://{address}/status", timeout=ANSWER_S)
    except httpx.HTTPError:
        return {}
    if reply.status_code != httpx.codes.OK:
        return {}
    return msgspec.json.decode(reply.content, type=dict[str, Beat])


def processes(beats: Mapping[str, Beat]) -> list[dict[str, Any]]:
    """One object per process, for machines."""
    return [{"name": name, **{key: value for key, value in msgspec.to_builtins(beat).items() if key != "metrics"}}
            for name, beat in beats.items()]


def table(beats: Mapping[str, Beat], before: Mapping[str, Beat] | None = None) -> list[str]:
    """One line per process. Speed needs the beats of a moment `before`."""
    if not beats:
        return ["  no process answers: the run has ended, has not begun to play, or runs where this one cannot reach"]
    now, lines = time.time(), [f"  {'process':<14} {'version':<18} {'lag':>4} {'speed':>14} {'progress':>9}  doing"]
    for name, beat in beats.items():
        lag = value(beat, "gagpo_rollout_version_lag_steps")
        progress = f"{now - beat.progress:.0f} s" if beat.progress else "none"
        lines.append(f"  {name:<14} {beat.version or '-':<18} {'-' if lag is None else f'{lag:.0f}':>4} "
                     f"{speed(beat, (before or {}).get(name)):>14} {progress:>9}  "
                     f"{beat.doing} ({now - beat.since:.0f} s)")
    return lines + _backlog(beats)


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


def speed(beat: Beat, before: Beat | None) -> str:
    """Tokens sampled per second since `before`, or learner steps taken."""
    steps = value(beat, "gagpo_learner_step")
    if steps is not None:
        return f"step {steps:.0f}"
    tokens = value(beat, "gagpo_rollout_tokens_total", kind="response")
    if tokens is None:
        return "-"
    earlier = value(before, "gagpo_rollout_tokens_total", kind="response") if before else None
    if earlier is None or tokens < earlier:
        return f"{tokens:.0f} tokens"
    return f"{(tokens - earlier) / WATCH_S:.0f} tokens/s"


def value(beat: Beat, name: str, **labels: str) -> float | None:
    """A sample of a heartbeat."""
    return next((found for _, its, found in beat.metrics.get(name, []) if its == labels), None)
