"""Shows curves, evaluations, groups, episodes step by step, config and log of a run, or of several side by
side, while they train too. Other machines may look only with a token, taken from
$GAGPO_EXPLORE_TOKEN; through ssh none is needed: ssh -L 8400:localhost:8400 HOST.

example:
  gagpo explore runs/alfworld-tiny
  gagpo explore runs/mine runs/theirs --port 0
"""

from __future__ import annotations

import argparse
from contextlib import suppress

from deploy.commands.arguments import add_address_arguments, add_own_code
from deploy.runs.policies import check_distinct, run_path
from services.config.secrets import EXPLORE_TOKEN_VARIABLE, token_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    parser.add_argument("runs", metavar="RUN", nargs="+", type=run_path,
                        help="runs' folders, or their names in runs/")
    add_address_arguments(parser, 8400)
    add_own_code(parser)


def run(args: argparse.Namespace) -> None:
    """Serves until SIGTERM or Ctrl-C.

    Raises UserError for a folder without a run, for a run that is given twice, for more runs than there are
    colours, and for a taken port.
    """
    check_distinct(args.runs)
    from deploy.explorer.app import serve
    from deploy.explorer.runs import open_runs

    with suppress(KeyboardInterrupt):  # that is how its user ends it
        serve(open_runs(args.runs), host=args.host, port=args.port, token=token_from(EXPLORE_TOKEN_VARIABLE))
