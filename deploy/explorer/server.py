"""Runs the explorer as a process: binds the port, indexes the runs, prints the address, serves."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import uvicorn

from deploy.explorer.app import create_app
from deploy.explorer.runs import ExploredRun
from services.amounts import number_of
from services.config.secrets import EXPLORE_TOKEN_VARIABLE
from services.errors import UserError
from services.http.server import Server, bind, server_config
from services.process.addresses import host_port, is_local

DRAIN_S = 2


def serve(runs: Sequence[ExploredRun], *, host: str, port: int, token: str | None) -> None:
    """Serves until SIGTERM or SIGINT. Raises UserError for a port in use, and for a host that others can reach when
    there is no token."""
    if token is None and not is_local(host):
        raise UserError(f"{host} can be reached by others and there is no token",
                        f"set {EXPLORE_TOKEN_VARIABLE}, or bind to 127.0.0.1 and come through ssh -L")
    with contextlib.closing(bind(host, port)) as listener:
        for run in runs:
            groups = run.groups()
            steps = sum(entry.steps for entry in groups)
            print(f"{run.name}: {number_of(len(groups), 'group')}, {number_of(steps, 'step')}", flush=True)
        print(f"exploring on http://{host_port(*listener.getsockname()[:2])}/"
              f"{'?token=$' + EXPLORE_TOKEN_VARIABLE if token else ''}", flush=True)
        Server(explorer_config(runs, token)).run(sockets=[listener])


def explorer_config(runs: Sequence[ExploredRun], token: str | None) -> uvicorn.Config:
    """Returns the server's config; its `app` holds all checks of a request."""
    return server_config(create_app(runs, token), local_only=token is None, timeout_graceful_shutdown=DRAIN_S)
