"""`gagpo eval`: a model or a run's result on a fixed set of tasks, with an interval."""

from __future__ import annotations

import argparse
import json
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.runs.policies import resolve, run_path
from services.config.file import dump_config
from services.config.secrets import env_token
from services.config.tree import Config

if TYPE_CHECKING:
    from deploy.console.plain import StatusLines
    from deploy.launch.topology import Topology
    from services.controller.controller import Hooks


def add_parser(subparsers: argparse._SubParsersAction) -> None:  # pyright: ignore[reportPrivateUsage]
    """Registers the command."""
    parser = subparsers.add_parser(
        "eval",
        help="measure a model on a fixed set of tasks",
        description="Plays each task of the set once and reports mean success, its 95% interval over tasks,\n"
        "and success by task type. MODEL is a Hugging Face folder; a run's folder stands for its trained model.",
        epilog="example:\n  gagpo eval runs/alfworld-tiny --split heldout --episodes 256 --temperature 0.4",
    )
    parser.add_argument("model", metavar="MODEL|RUN", type=run_path)
    parser.add_argument("--config", metavar="FILE", help="how to play (default: the config of the run)")
    parser.add_argument("--split", help="default: the held-out games")
    parser.add_argument("--episodes", type=int, help="tasks to play (default: eval.panel of the config; 0: all)")
    parser.add_argument("--temperature", type=float, help="default: eval.temperature of the config")
    parser.add_argument("--max-steps", type=int, help="default: env.max_steps of the config")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the summary."""
    from deploy.console.progress import as_score
    from deploy.launch import preflight

    config, model = resolve(args.model, args.config, {
        "eval.panel": args.episodes, "eval.temperature": args.temperature, "env.max_steps": args.max_steps,
    }, args.overrides)
    preflight.check_parts(config)
    summary = evaluate(config, model, split=args.split)
    if args.json:
        print(json.dumps({"format": 1, **summary}))
        return 0
    print(f"{summary['success_rate']:.1%} [{summary['success_low']:.1%}, {summary['success_high']:.1%}] on "
          f"{summary['tasks']} games of {summary['split']} ({summary['env']}, {summary['engine']}), "
          f"T={summary['temperature']:g}, mean length {summary['episode_length']:.1f}{as_score(summary)}")
    for name, rate in summary["success_by_type"].items():
        print(f"  {name:<6} {rate:.1%}")
    return 0


def evaluate(config: Config, model: Path, *, split: str | None) -> dict[str, Any]:
    """Starts a topology without a learner and runs one evaluation on it."""
    from rich.console import Console

    from deploy.console.plain import StatusLines
    from deploy.launch import preflight
    from deploy.launch.publishing import publish_folder
    from deploy.launch.task_sets import cut, engine_name
    from deploy.launch.topology import topology
    from envservice.registry import open_environment
    from services.controller.controller import Controller
    from services.controller.tickets import EvalRequest, TaskStream, TrainTickets

    environment = open_environment(config.env)
    engine, token = engine_name(environment), env_token(config.env)
    preflight.check_versions(config.env.urls, env=environment.name, engine=engine, token=token)
    train, _, heldout = environment.training_splits()
    everything = environment.tasks(chosen := split or heldout)
    tasks = cut(everything, config.eval.panel or len(everything), name=chosen)
    run = f"eval-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory(prefix="gagpo-eval-") as name, StatusLines(Console(stderr=True)) as lines:
        folder = Path(name)
        dump_config(config, folder / "config.yaml")
        with topology(config, run=run, folder=folder, config_file=folder / "config.yaml", note=lines.note) as parts:
            lease = parts.store.acquire("controller", run, ttl_s=30.0)
            controller = Controller(
                config=config, store=parts.store, lease=lease, supervisor=parts.supervisor,
                tickets=TrainTickets(config=config, tasks=TaskStream(environment.tasks(train), config.seed)),
                request=lambda _: None,
                hooks=_hooks(lines, environment.task_type, parts),
            )
            version = publish_folder(parts, model, holder=run)
            for index in range(config.rollout.workers):
                parts.supervisor.add(parts.rollout_worker(index, model))
            request = EvalRequest(label="eval", version=version, split=chosen, tasks=tasks,
                                  temperature=config.eval.temperature, seed=config.seed + 1,
                                  max_steps=config.env.max_steps)
            (summary,) = controller.evaluate_now([request])
            parts.store.erase()
    return {**summary, "env": environment.name, "engine": engine_name(environment)}


def _hooks(lines: StatusLines, task_type: Callable[[str], str], parts: Topology) -> Hooks:
    from deploy.training.loading import Loading
    from services.controller.controller import Hooks

    loading = Loading(parts.config.rollout.workers, parts.store.beats, waiting=lines.waiting)
    return Hooks(note=lines.note, evaluated=lambda *_: None, task_type=task_type, tick=loading.tick,
                 playing=lambda label, done, total: lines.at(label, done, total, "games"))
