"""`gagpo play`: plays one game, interactively, by a program or by an agent; shows its prompts; lists the tasks."""

from __future__ import annotations

import argparse
import io
import json
import sys
from typing import TYPE_CHECKING

from deploy.commands.arguments import above_zero, add_env_arguments, env_from, is_setting, positive
from deploy.commands.task_session import open_session
from deploy.console.printable import printable
from deploy.runs.configs import config_to_play
from deploy.runs.policies import run_path
from envservice.base import Outcome, Session
from services.amounts import number_of
from services.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

_OVER = "the episode is over; end the input, or start another game"


def add_parser(subparsers: argparse._SubParsersAction) -> None:  # pyright: ignore[reportPrivateUsage]
    """Registers the command."""
    parser = subparsers.add_parser(
        "play",
        description="Plays a task interactively. With --json it reads one action per line and prints one object per\n"
        "line, the reset first. There is no limit of steps unless --max-steps gives one. The task id names the\n"
        "environment; for one of your own, give --env or --config. An agent plays by the config of its run.\n"
        "--prompts shows what a model reads before it is trained: the first prompts as text and as tokens, and what\n"
        "ends an answer. The environment's scripted player acts between them, else the first admissible action is\n"
        "taken. The tokens are those of --agent, or of model.path.\n"
        "--tasks lists the task ids of a split, one per line, sorted; their number and the digest over their\n"
        "contents go to stderr. ALFWorld's games are those in ALFWORLD_DATA, or generated ones if it is not\n"
        "set. Splits of official games: train, valid_seen, valid_unseen; train_kept and heldout, into which\n"
        "train is divided by game folder. Splits of generated games: train, valid, heldout.",
        epilog="examples:\n  gagpo play --tasks valid --config alfworld-tiny\n"
        "  gagpo play $(gagpo play --tasks valid 2>/dev/null | head -1)\n"
        "  gagpo play alfworld-gen/valid/look-0001 --agent runs/alfworld-tiny\n"
        "  gagpo play alfworld-gen/valid/look-0001 --config alfworld-tiny --prompts 2",
    )
    parser.add_argument("task", nargs="?", metavar="TASK", help="a task id, as --tasks prints it")
    add_env_arguments(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--tasks", metavar="SPLIT",
                       help="list the tasks of this split; for a wrong name the error lists all splits")
    shown.add_argument("--prompts", type=positive, metavar="N", help="show the prompts of the task's first N turns")
    parser.add_argument("--json", action="store_true", help="actions from stdin, one object per line on stdout; with "
                        "--tasks or --prompts one object with all of it")
    parser.add_argument("--max-steps", type=positive, metavar="N", help="end the episode after N steps")
    parser.add_argument("--agent", metavar="RUN|MODEL", type=run_path,
                        help="watch a trained agent play; with --prompts use its tokenizer and config")
    parser.add_argument("--temperature", type=above_zero, help="the agent's temperature (default: eval.temperature)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the agent's sampling (default: 0)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plays until the input ends. Raises UserError for an unknown task, missing data or a game that fails."""
    _check_words(args)
    if args.tasks is not None:
        _list_tasks(args)
        return 0
    if args.prompts is not None:
        from deploy.commands.first_prompts import show_prompts

        show_prompts(args)
        return 0
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")  # any bytes are an action, even if a bad one
    if args.agent is not None:
        _watch(args)
    else:
        (_play_json if args.json else _play)(
            open_session(env_from(args, config_to_play), args.task), args.max_steps)
    return 0


def _check_words(args: argparse.Namespace) -> None:
    """Raises UserError if the task is missing, or beside --tasks, or an option does nothing. argparse puts the first
    setting in the task's place."""
    if args.tasks is not None and args.task is not None and is_setting(args.task):
        args.task, args.overrides = None, [args.task, *args.overrides]
    if args.tasks is not None and args.task is not None:
        raise UserError(f"--tasks {args.tasks} lists a split, and {args.task} is one task", "leave one of them out")
    if args.tasks is None and (args.task is None or is_setting(args.task)):
        instead = "is missing" if args.task is None else f"is missing: {args.task} stands in its place"
        raise UserError(f"TASK {instead}", "give a task id, as `gagpo play --tasks SPLIT` prints it")
    played = {"--max-steps": args.max_steps is not None, "--temperature": args.temperature is not None,
              "--seed": args.seed != 0, "--agent": args.agent is not None and args.tasks is not None}
    mode = "--tasks" if args.tasks is not None else "--prompts" if args.prompts is not None else None
    for option in (option for option, given in played.items() if given and mode):
        raise UserError(f"{option} does nothing with {mode}", "leave it out")


def _list_tasks(args: argparse.Namespace) -> None:
    """Prints the tasks of a split. Raises UserError for an unknown split and for missing or broken data."""
    from envservice.checks import tasks_of
    from envservice.registry import open_environment

    environment = open_environment(env_from(args))
    tasks, digest = tasks_of(environment, args.tasks), environment.digest(args.tasks)
    if args.json:
        print(json.dumps({"split": args.tasks, "digest": digest, "tasks": tasks}))
        return
    print("\n".join(tasks))
    print(f"{number_of(len(tasks), 'task')} of {environment.name}, digest {digest}", file=sys.stderr)


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
