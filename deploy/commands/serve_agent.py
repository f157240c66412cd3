"""Serves a policy until it is stopped, and prints the URL when it is ready. OpenAI's clients
ask it at URL/v1, and Anthropic's at URL. POST /episodes opens an episode of a task with a key of its
own, in which the environment of the config is at /env; DELETE /episodes ends it. Other machines may
reach it only with a bearer token, taken from $GAGPO_AGENT_TOKEN.

examples:
  gagpo serve-agent exported --out episodes.jsonl
  gagpo serve-agent /models/mine --no-env rollout.max_prompt_tokens=4096
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import suppress
from pathlib import Path

from deploy.commands.arguments import add_address_arguments, is_setting
from services.config.secrets import AGENT_TOKEN_VARIABLE, token_from
from services.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    parser.add_argument("policy", metavar="POLICY", help="an exported folder, a run, or any Hugging Face folder")
    parser.add_argument("--config", metavar="FILE", help="settings (default: those next to the policy)")
    parser.add_argument("--which", metavar="latest|best|STEP", help="which checkpoint of a run")
    add_address_arguments(parser, 8200)
    parser.add_argument("--no-env", action="store_true", help="episodes have no environment; rewards come by HTTP")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append each ended episode as a line of JSON")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help="set one key of the config")


def run(args: argparse.Namespace) -> None:
    """Serves until SIGTERM or Ctrl-C. Raises UserError."""
    from deploy.launch.checks.chat_template import check_template
    from deploy.launch.checks.preflight import check_policy
    from deploy.runs.policies import resolve_or_default, run_path
    from deploy.training.evaluation import check_results
    from envservice.registry import check_tools
    from services.process.addresses import check_exposure
    from services.telemetry.logs import adopt_libraries, configure_logs

    if is_setting(args.policy):
        raise UserError(f"POLICY is missing: {args.policy} stands in its place", "give it before the settings")
    config, policy = resolve_or_default(run_path(args.policy), args.config, args.overrides, which=args.which)
    if args.out is not None:
        check_results(args.out)  # rather now than at the end of the first episode
    check_policy(config)
    check_template(config, folder=policy.folder, conversations=True)
    if not args.no_env:
        check_tools(config.env)
    token = token_from(AGENT_TOKEN_VARIABLE)
    check_exposure(args.host, token, AGENT_TOKEN_VARIABLE)
    configure_logs(None, process="agents", show=None)
    adopt_libraries()

    from rollout.agents.standalone_endpoint import ServedPolicy, serve_agents

    served = ServedPolicy(config=config, model=policy.folder, host=args.host, port=args.port, token=token,
                          with_env=not args.no_env, out=args.out)
    with suppress(KeyboardInterrupt):  # that is how its user ends it
        asyncio.run(serve_agents(served, lambda url: print(f"{policy.title} on {url}", flush=True)))
