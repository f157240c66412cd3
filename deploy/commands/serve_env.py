"""Serves an environment over HTTP until it is stopped, and prints its URL when it is ready. Its
log is on stderr: short lines on a terminal, otherwise JSON. If stdout is not a terminal, it gets one
line with the URL. Other machines may reach it only with a bearer token, taken from
$GAGPO_ENV_TOKEN, else from the file env.token_file.

examples:
  gagpo serve-env --config alfworld-tiny --port 8100 env.max_sessions=4096
  gagpo serve-env --env webshop --openenv
  gagpo serve-env --env alfworld --mcp
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

from deploy.commands.arguments import add_address_arguments, add_env_arguments, env_from
from deploy.runs.configs import light_config
from services.config.env import EnvSection
from services.config.secrets import ENV_TOKEN_VARIABLE, env_token, token_from
from services.process.addresses import is_local
from services.telemetry.logs import adopt_libraries, configure_logs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    add_env_arguments(parser)
    add_address_arguments(parser, 8100)
    protocol = parser.add_mutually_exclusive_group()
    protocol.add_argument("--openenv", action="store_true",
                          help="speak OpenEnv's protocol over WebSockets instead, for its clients")
    protocol.add_argument("--mcp", action="store_true",
                          help="speak MCP over standard input and output instead, for a client that starts this "
                          "command: tools reset and step")
    parser.add_argument("--exit-with-parent", type=int, metavar="PID", help="stop when PID, which started it, ends")
    parser.add_argument("--run-folder", type=Path, metavar="FOLDER",
                        help="log to this folder of a run instead, as its environment server --rank")
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="which of the run's servers (default: 0)")


def run(args: argparse.Namespace) -> None:
    """Serves until SIGTERM or Ctrl-C. Raises UserError."""
    config, env = light_config(args.config, args.overrides), env_from(args)
    token = token_from(ENV_TOKEN_VARIABLE)
    if token is None and args.run_folder is None:  # a run passes its token to its own servers by the variable
        token = env_token(env)
    process = "environment" if args.run_folder is None else f"environment-{args.rank}"
    if args.run_folder is None:
        configure_logs(None, process=process)
    else:
        configure_logs(args.run_folder, process=process, show=None, node=args.host)
    adopt_libraries()

    from envservice.registry import is_threaded, largest_session, open_environment
    from envservice.server.app import Settings
    from envservice.server.capacity import session_limit, sessions_bytes
    from envservice.server.process import serve
    from services.amounts import GIB

    if args.openenv or args.mcp:
        _serve_protocol(args, env, token)
        return
    settings = Settings(
        max_sessions=session_limit(env, largest_session(env)), record_bytes=sessions_bytes(env),
        token=token,
        open_metrics=is_local(args.host) or args.run_folder is not None,  # a run's own server: Prometheus has no token
        call_s=env.call_seconds, live_lease_s=config.agent.seconds, threaded=is_threaded(env),
        recycle_s=None if env.recycle_hours is None else 3600 * env.recycle_hours,
        recycle_bytes=None if env.recycle_gb is None else int(GIB * env.recycle_gb))
    with suppress(KeyboardInterrupt):  # that is how its user ends it
        serve(
            lambda: open_environment(env), host=args.host, port=args.port, settings=settings,
            parent=args.exit_with_parent)


def _serve_protocol(args: argparse.Namespace, env: EnvSection, token: str | None) -> None:
    """Serves by OpenEnv's protocol or by MCP until it is stopped."""
    from envservice.registry import largest_session, open_environment

    if args.mcp:
        from envservice.adapters.mcp_server import serve_mcp

        with suppress(KeyboardInterrupt):
            serve_mcp(lambda: open_environment(env))
        return
    from envservice.adapters.openenv_server import serve_openenv
    from envservice.server.capacity import session_limit

    serve_openenv(lambda: open_environment(env), host=args.host, port=args.port,
                  limit=session_limit(env, largest_session(env)), token=token, call_s=env.call_seconds)
