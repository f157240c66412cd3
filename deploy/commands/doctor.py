"""Checks versions, Redis, ports, memory, GPU and game data, and says how to fix each finding.
Exits with 1 if something would stop a run.

example:
  gagpo doctor --json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from deploy.launch.checks.doctor import examine
from envservice.spec import Finding

if TYPE_CHECKING:
    from rich.console import Console

COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")


def run(args: argparse.Namespace) -> int:
    """Prints the findings. Returns 1 if one is an error."""
    from rich.console import Console

    findings = examine()
    if args.json:
        print(json.dumps({"format": 1, "findings": [asdict(finding) for finding in findings]}))
    else:
        show(findings, Console(soft_wrap=True))
    return int(any(finding.status == "error" for finding in findings))


def show(findings: list[Finding], console: Console) -> None:
    """Prints one line per finding, with the way to fix it below."""
    from rich.text import Text

    for finding in findings:
        line = Text(f"{finding.status:<8}", style=COLOURS[finding.status])
        console.print(line.append(f"{finding.check:<16}", style="bold").append(finding.detail, style="default"))
        if finding.fix:
            console.print(Text(f"{'':<24}fix: {finding.fix}"))
