"""`gagpo eval`: a model or a run's result on a fixed set of tasks, with an interval."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from deploy.runs.policies import resolve, run_path


def add_parser(subparsers: argparse._SubParsersAction) -> None:  # pyright: ignore[reportPrivateUsage]
    """Registers the command."""
    parser = subparsers.add_parser(
        "eval",
        help="measure a model on a fixed set of tasks",
        description="Plays each task of the set once and reports mean success, its 95% interval over tasks,\n"
        "and success by task type. MODEL is a Hugging Face folder, such as `gagpo export` makes. A run's folder\n"
        "stands for its trained model, or for its latest checkpoint before it has finished. The result is kept.",
        epilog="examples:\n  gagpo eval runs/alfworld-tiny --split heldout --episodes 256 --temperature 0.4\n"
        "  gagpo eval runs/alfworld-tiny --which best",
    )
    parser.add_argument("model", metavar="MODEL|RUN", type=run_path)
    parser.add_argument("--which", metavar="latest|best|STEP", help="a checkpoint of the run (best: by evaluation)")
    parser.add_argument("--config", metavar="FILE", help="how to play (default: the config of the run or the export)")
    parser.add_argument("--split", help="default: the held-out games")
    parser.add_argument("--episodes", type=int, help="tasks to play (default: eval.panel of the config; 0: all)")
    parser.add_argument("--temperature", type=float, help="default: eval.temperature of the config")
    parser.add_argument("--max-steps", type=int, help="default: env.max_steps of the config")
    parser.add_argument("--out", metavar="FILE", type=Path,
                        help="file that the result is appended to (default: RUN/eval.jsonl, or MODEL.eval.jsonl)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the summary."""
    from deploy.console.progress import as_score, left_out
    from deploy.training.evaluation import evaluate, results_file

    config, policy = resolve(args.model, args.config, {
        "eval.panel": args.episodes, "eval.temperature": args.temperature, "env.max_steps": args.max_steps,
    }, args.overrides, which=args.which)
    done = evaluate(config, policy, split=args.split, file=args.out or results_file(args.model))
    summary = done.summary
    if args.json:
        print(json.dumps({"format": 1, **summary}))
        return 0
    print(f"{policy.title}:\n"
          f"{summary['success_rate']:.1%} [{summary['success_low']:.1%}, {summary['success_high']:.1%}] on "
          f"{summary['tasks']} games of {summary['split']} ({summary['env']}, {summary['engine']}), "
          f"T={summary['temperature']:g}, mean length {summary['episode_length']:.1f}"
          f"{as_score(summary)}{left_out(summary)}")
    for name, rate in summary["success_by_type"].items():
        print(f"  {name:<6} {rate:.1%}")
    print(f"kept in {done.file}")
    return 0
