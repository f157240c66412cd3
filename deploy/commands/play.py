"""`gagpo play TASK`: plays one game interactively, or with a program that reads and writes JSON."""

from __future__ import annotations

import argparse
import io
import json
import sys
from typing import TYPE_CHECKING

from deploy.commands.arguments import above_zero, add_env_arguments, env_from, positive
from deploy.commands.task_session import open_session
from deploy.console.printable import printable
from deploy.runs.configs import config_to_play
from deploy.runs.policies import run_path
from envservice.base import Outcome, Session
from services.amounts import number_of

if TYPE_CHECKING:
    from rich.console import Console

_OVER = "the episode is over; end the input, or start another game"


def add_parser(subparsers: argparse._SubParsersAction) -> None:  # pyright: ignore[reportPrivateUsage]
    """Registers the command."""
    parser = subparsers.add_parser(
        "play",
        help="play one game",
        description="Plays a task interactively. With --json it reads one action per line and prints one object per\n"
        "line, the reset first. There is no limit of steps unless --max-steps gives one. The task id names the\n"
        "environment; for one of your own, give --env or --config. An agent plays by the config of its run.",
        epilog="examples:\n  gagpo play $(gagpo tasks valid 2>/dev/null | head -1)\n"
        "  gagpo play alfworld-gen/valid/look-0001 --agent runs/alfworld-tiny",
    )
    parser.add_argument("task", metavar="TASK", help="a task id, as `gagpo tasks SPLIT` prints it")
    add_env_arguments(parser)
    parser.add_argument("--json", action="store_true", help="actions from stdin, one object per line on stdout")
    parser.add_argument("--max-steps", type=positive, metavar="N", help="end the episode after N steps")
    parser.add_argument("--agent", metavar="RUN|MODEL", type=run_path, help="watch a trained agent play")
    parser.add_argument("--temperature", type=above_zero, help="the agent's temperature (default: eval.temperature)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the agent's sampling")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plays until the input ends. Raises UserError for an unknown task, missing data or a game that fails."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")  # any bytes are an action, even if a bad one
    if args.agent is not None:
        _watch(args)
    else:
        (_play_json if args.json else _play)(
            open_session(env_from(args, config_to_play), args.task), args.max_steps)
    return 0


def _play_json(session: Session, max_steps: int | None) -> None:
    outcome, step = session.reset(), 0
    over = False
    _print_record(outcome, step, done=over)
    for line in sys.stdin:
        if over:
            print(json.dumps({"error": _OVER, "step": step}), flush=True)
            continue
        outcome, step = session.step(line.removesuffix("\n")), step + 1
        over = outcome.done or step == max_steps
        _print_record(outcome, step, done=over)


def _watch(args: argparse.Namespace) -> None:
    """Lets the agent play. Records also hold its answer and its action."""
    from rich.console import Console

    from deploy.commands.play_agent import load_agent, moves
    from deploy.runs.policies import check_asked_by_prompt, resolve

    config, policy = resolve(
        args.agent, args.config, {"eval.temperature": args.temperature, "env.name": args.env}, args.overrides)
    check_asked_by_prompt(config, args.agent)
    session = open_session(config.env, args.task)
    agent, console = load_agent(config, policy.folder, seed=args.seed), Console(highlight=False)
    outcome, step = session.reset(), 0
    limit = args.max_steps or config.env.max_steps
    if args.json:
        _print_record(outcome, step, done=False)
    else:
        _show(console, outcome)
    for step, move in enumerate(moves(agent, session, outcome, limit), start=1):
        outcome = move.outcome
        if args.json:
            over = outcome.done or step == limit
            _print_record(outcome, step, done=over, action=move.action, answer=move.answer)
        else:
            console.print(f"{step}> {printable(move.answer)}", style="bold", markup=False)
            console.print(f"{printable(outcome.observation)}\n", markup=False)
    if not args.json:
        console.print(f"{'won' if outcome.won else 'not won'} after {number_of(step, 'step')}")


def _print_record(outcome: Outcome, step: int, *, done: bool, **more: str) -> None:
    record = {
        **more,
        "observation": outcome.observation,
        "admissible_actions": outcome.admissible_actions,
        "reward": outcome.reward,
        "done": done,
        "won": outcome.won,
        "step": step,
    }
    print(json.dumps(record), flush=True)


def _play(session: Session, max_steps: int | None) -> None:
    from rich.console import Console

    console, step = Console(highlight=False), 0
    outcome = session.reset()
    _show(console, outcome)
    while not outcome.done and step != max_steps:
        try:
            action = console.input(f"[bold]{step + 1}>[/bold] ")
        except EOFError:
            console.print()
            return
        outcome, step = session.step(action), step + 1
        _show(console, outcome)
    console.print(f"{'won' if outcome.won else 'not won'} after {number_of(step, 'step')}")


def _show(console: Console, outcome: Outcome) -> None:
    console.print(f"{printable(outcome.observation)}\n", markup=False)
    if not outcome.done:
        console.print(printable(" | ".join(outcome.admissible_actions)), style="dim", markup=False)
