"""Plays each task of the set once and reports mean success, its 95% interval over tasks,
and success by task type. MODEL is a Hugging Face folder, such as `gagpo export` makes. A run's folder
stands for its trained model, or for its latest checkpoint before it has finished. The result is kept in
RUN/eval.jsonl, or in MODEL.eval.jsonl next to the model's folder.
--policy asks a model without training: MODEL in our sampler, or any OpenAI-compatible --endpoint. Every
trial is kept, and the same command continues an interrupted evaluation. Its result is next to those above,
in POLICY.eval.jsonl or POLICY.MODEL.eval.jsonl.

examples:
  gagpo eval runs/alfworld-tiny --split heldout --episodes 256 --temperature 0.4
  gagpo eval runs/alfworld-tiny --which best
  gagpo eval --policy react --endpoint http://127.0.0.1:8000/v1 --config alfworld-1.5b --split valid_seen
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from deploy.commands.arguments import above_zero, counted, is_setting, optional_config_from, positive
from deploy.console.plain import printable
from deploy.runs.configs import lay_over
from deploy.runs.policies import PlayablePolicy, resolve, run_path
from services.amounts import number_of, rounded, span
from services.config.tree import Config
from services.errors import UserError

POLICIES = ("direct", "react", "reflexion")
ENDPOINT_RESULTS = Path("prompting")
"""Folder of the results of models behind an endpoint."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    parser.add_argument("model", metavar="MODEL|RUN", nargs="?",
                        help="a Hugging Face folder, or a run; nothing with --policy and --endpoint")
    parser.add_argument("--which", metavar="latest|best|STEP", help="a checkpoint of the run (best: by evaluation)")
    parser.add_argument("--config", metavar="FILE", help="how to play (default: the config of the run or the export)")
    parser.add_argument("--split", help="default: the held-out games")
    parser.add_argument("--episodes", type=counted, help="tasks to play (default: eval.panel of the config; 0: all)")
    parser.add_argument("--temperature", type=above_zero, help="default: eval.temperature of the config")
    parser.add_argument("--max-steps", type=positive, help="default: env.max_steps of the config")
    parser.add_argument("--policy", choices=POLICIES, help="ask the model by a prompting baseline")
    parser.add_argument("--endpoint", metavar="URL", help="with --policy: an OpenAI-compatible server, with its /v1; "
                        "its key comes from prompting.key_file or $GAGPO_ENDPOINT_KEY")
    parser.add_argument("--model", dest="served", metavar="NAME",
                        help="the endpoint's model (default: the only one that it serves)")
    parser.add_argument("--out", metavar="FILE", type=Path,
                        help="file that the result is appended to (default: RUN/eval.jsonl or MODEL.eval.jsonl, with "
                        "--policy RUN/POLICY.eval.jsonl or POLICY.MODEL.eval.jsonl, and with --endpoint "
                        "prompting/POLICY-NAME.eval.jsonl)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help="set one key of the config")


def run(args: argparse.Namespace) -> int:
    """Evaluates and prints the summary. Raises UserError, also for options that exclude each other."""
    _sort_words(args)
    if args.endpoint is not None and args.policy is None:
        raise UserError("--endpoint is given without --policy", f"add --policy, one of {', '.join(POLICIES)}")
    if args.served is not None and args.endpoint is None:
        raise UserError("--model is given without --endpoint", "give a folder as MODEL, or an --endpoint")
    if args.which is not None and args.endpoint is not None:
        raise UserError("--which is given with --endpoint", "leave it out: it chooses a checkpoint of a run")
    if (args.endpoint is None) == (args.model is None):
        raise UserError("no model is given" if args.model is None else "both a folder and --endpoint are given",
                        "give a folder or a run, or --policy and --endpoint")
    began = time.monotonic()
    summary, file = _evaluate_prompting(args) if args.policy else _evaluate(args)
    summary = {"seconds": time.monotonic() - began, **summary}
    if args.json:
        print(json.dumps({"format": 1, **summary}))
        return 0
    show(summary)
    print(f"kept in {file.absolute()}")
    return 0


def _sort_words(args: argparse.Namespace) -> None:
    """Separates the model from overrides. argparse cannot: the model is optional, and options may come before it."""
    words = [word for word in (args.model, *args.overrides) if word is not None]
    args.model = next((word for word in words if not is_setting(word)), None)
    if args.model is not None:
        words.remove(args.model)
    args.overrides = words


def _given(args: argparse.Namespace) -> dict[str, object | None]:
    return {"eval.panel": args.episodes, "eval.temperature": args.temperature, "env.max_steps": args.max_steps}


def _evaluate(args: argparse.Namespace) -> tuple[dict[str, Any], Path]:
    from deploy.training.evaluation import evaluate, results_file

    path = run_path(args.model)
    config, policy = resolve(path, args.config, _given(args), args.overrides, which=args.which)
    done = evaluate(config, policy, split=args.split, file=args.out or results_file(path))
    return done.summary, done.file


def _evaluate_prompting(args: argparse.Namespace) -> tuple[dict[str, Any], Path]:
    from rich.console import Console

    from deploy.console.plain import StatusLines
    from deploy.training.prompting import asked_endpoint, asked_sampler, episodes_file, make_plan, play
    from services.process.signals import until_sigterm
    from services.telemetry.metrics_file import keep_row

    config, policy, default = _sampler(args) if args.endpoint is None else (_endpoint_config(args), None, None)
    chosen = None if (place := args.out or default) is None else _place(place)
    plan = make_plan(config, args.policy, args.split, weights=policy.weights() if policy else None)

    async def played(lines: StatusLines) -> tuple[dict[str, Any], Path]:
        asking = asked_endpoint(config, args.endpoint, args.served, lines.passing) if policy is None else \
            asked_sampler(config, policy, tags=args.policy == "direct", report=lines.note)
        async with asking as (asked, name):
            safe_name = re.sub("[^A-Za-z0-9._-]+", "-", name)
            file = chosen or _place(ENDPOINT_RESULTS / f"{args.policy}-{safe_name}.eval.jsonl")
            lines.note(f"playing {number_of(len(plan.tasks), 'game')} of {plan.split} by {args.policy} with {name}")
            return await play(plan, asked, name, episodes_file(file),
                              lambda done, total: lines.at(args.policy, done, total, "games"), report=lines.note), file

    with StatusLines(Console(stderr=True)) as lines:
        try:
            summary, file = asyncio.run(until_sigterm(played(lines)))
        except UserError:
            raise
        except BaseException:  # a signal or a fault: the trials so far are kept
            lines.note("to continue: the same command")
            raise
        keep_row(file, summary, wait_s=config.learner.collective_s, note=lines.note)
    return summary, file


def _sampler(args: argparse.Namespace) -> tuple[Config, PlayablePolicy, Path]:
    """Returns the config, the policy and the file of results of a model that our own sampler plays."""
    from deploy.launch.planning.fit import evaluation_config
    from deploy.training.evaluation import results_file

    path = run_path(args.model)
    config, policy = resolve(path, args.config, _given(args), args.overrides, which=args.which)
    results = results_file(path)
    return (evaluation_config(config, partial(print, file=sys.stderr, flush=True)), policy,
            results.with_name(f"{args.policy}.{results.name}"))


def _endpoint_config(args: argparse.Namespace) -> Config:
    given = {key: value for key, value in _given(args).items() if value is not None}
    return lay_over(optional_config_from(args), given)


def _place(file: Path) -> Path:
    """Returns `file`, and makes its folder if needed. Raises UserError if no result can be appended to it."""
    from deploy.launch.planning.machine import check_writable
    from deploy.training.evaluation import check_results

    check_writable(file.parent, str(file), "choose another file with --out")
    file.parent.mkdir(parents=True, exist_ok=True)
    check_results(file)
    return file


def show(summary: dict[str, Any]) -> None:
    """Prints a result."""
    from deploy.console.plain import answer_shares
    from deploy.console.progress import as_score, left_out
    from deploy.runs.comparison import rule_scores
    from services.telemetry.evaluations import env_scores

    print(f"{printable(summary['policy'])}:\n"
          f"{summary['success_rate']:.1%} [{summary['success_low']:.1%}, {summary['success_high']:.1%}] on "
          f"{number_of(summary['tasks'], 'game')} of {summary['split']} ({summary['env']}, {summary['engine']}), "
          f"T={summary['temperature']:g}, mean length {summary['episode_length']:.1f}"
          f"{as_score(summary)}{left_out(summary)}")
    for text in (*env_scores(summary), *rule_scores(summary)):
        print(f"  {text}")
    for name, rate in summary["success_by_type"].items():
        print(f"  {name:<6} {rate:.1%}")
    if "calls" in summary:
        print(f"played in {span(summary['seconds'])}")
    else:
        print(f"answers: {answer_shares(summary)}")
        rate = summary["tokens_sampled"] / max(summary["seconds"], 1e-9)
        print(f"played in {span(summary['seconds'])} after {span(summary['loading_seconds'])} of loading, "
              f"{rounded(rate)} tokens of answers a second")
    if len(rounds := summary.get("success_by_trial", ())) > 1:
        print("solved after trial " + ", ".join(f"{k}: {rate:.1%}" for k, rate in enumerate(rounds, 1)))
    if summary.get("context_full"):
        print(f"{summary['context_full']} of {summary['episodes']} trials ended because their conversation was longer "
              "than the model reads")
    if empty := summary.get("empty_answers"):
        print(f"{empty:,} of {summary['calls']:,} answers were empty; a model that thinks first may need a larger "
              "rollout.max_response_tokens")
    if "calls" in summary:
        if invalid := summary["invalid_share"]:
            print(f"{invalid:.1%} of the answers did not have the form that the prompt asks for")
        unknown = f"; {summary['uncounted_calls']} calls were not counted" if summary["uncounted_calls"] else ""
        print(f"cost: {summary['calls']:,} calls, {summary['prompt_tokens']:,} tokens of prompts and "
              f"{summary['answer_tokens']:,} of answers{unknown}")
