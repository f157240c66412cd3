"""Whether a run is the current user's own. A config of somebody else's may name our secrets and their addresses."""

from __future__ import annotations

import os
from pathlib import Path

from deploy.runs.folder import RunFolder


def is_own(run: RunFolder, *others: Path) -> bool:
    """Returns whether the run's folder, its config and the `others` belong to this user and only they can write them.

    A path that is missing, or cannot be examined, counts as somebody else's.
    """
    try:
        facts = [path.stat() for path in (run.path, run.config_file, *others)]
    except OSError:
        return False
    return all(fact.st_uid == os.geteuid() and not fact.st_mode & 0o022 for fact in facts)


def withheld(key: str, run: RunFolder) -> str:
    """Returns the line about a file that a command does not use, because the run is not this user's own."""
    return f"note: the file of {key} is not used, because others can write to {run.path} or what it refers to"
