"""Starts Prometheus, and Grafana if it is installed, over all runs of a folder (later ones too)
with our dashboards and alerts, and prints their addresses. Their data is in RUNS/.monitor.

example:
  gagpo monitor
  gagpo monitor runs --port 0
"""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from pathlib import Path

from deploy.runs.policies import RUNS
from services.errors import Fault, UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    parser.add_argument("runs_dir", metavar="RUNS", nargs="?", type=Path, default=RUNS,
                        help="the folder of the runs (default: runs)")
    parser.add_argument("--port", type=int, default=9090, help="port of Prometheus; 0: a free one (default: 9090)")
    parser.add_argument("--grafana-port", type=int, default=3000, help="port of Grafana; 0: a free one (default: 3000)")
    parser.add_argument("--ray", metavar="FILE", type=Path, help="also scrape Ray: "
                        "prom_metrics_service_discovery.json in the temporary folder of its head")


def run(args: argparse.Namespace) -> None:
    """Serves until SIGTERM or Ctrl-C. Raises UserError for a folder that is missing, without Prometheus, for a port
    that is taken and for a --ray file that is missing, and Fault if one of the servers ends."""
    if not args.runs_dir.is_dir() and args.runs_dir != RUNS:  # the first run makes runs/
        raise UserError(f"there is no folder {args.runs_dir}", "give the folder that holds the runs")
    if args.ray is not None and (not args.ray.is_file() or args.ray.suffix != ".json"):
        raise UserError(f"--ray {args.ray} is no JSON file",
                        "give prom_metrics_service_discovery.json in the temporary folder of Ray's head")
    from deploy.monitor.servers import grafana, prometheus

    with suppress(KeyboardInterrupt):  # Ctrl-C is how its user ends it
        with (prometheus(args.runs_dir, port=args.port, ray=args.ray) as source,
              grafana(args.runs_dir, source, port=args.grafana_port) as pages):
            print(f"Prometheus: {source}", flush=True)
            print(f"Grafana:    {pages or 'not installed; our dashboards: deploy/prometheus/grafana'}", flush=True)
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        raise Fault(f"Prometheus or Grafana ended by itself; the logs are in {args.runs_dir / '.monitor'}")
