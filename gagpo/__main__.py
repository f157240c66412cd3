"""The command `gagpo`, and `python -m gagpo`."""

from __future__ import annotations

import sys

from gagpo.installation import check


def main() -> int:
    """Runs the command line. Returns 2 if a folder of the user hides one of our packages, 130 for a Ctrl-C before it
    has begun."""
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
