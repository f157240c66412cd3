"""The command `gagpo`, and `python -m gagpo`."""

from __future__ import annotations

import sys

from gagpo.installation import check


def main() -> int:
    """Runs the command line and returns its exit code: 2 if our packages cannot be imported by their plain names, 130
    for a Ctrl-C while they are imported."""
    try:
        check()
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        from deploy.cli import main as command_line
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    return command_line()


if __name__ == "__main__":
    sys.exit(main())
