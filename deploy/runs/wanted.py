"""wanted.json: how many processes of each role a run should have. A run reads it while it goes on and on --resume."""

from __future__ import annotations

from typing import Annotated

import msgspec

from deploy.runs.folder import RunFolder
from services.files import read_json, write_whole

Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]


class WantedNumbers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numbers of processes. None: as the config says."""

    rollout: Count | None = None
    """Rollout workers."""
    env: Count | None = None
    """Environment servers that the run starts."""


def read_wanted(folder: RunFolder) -> WantedNumbers:
    """Returns what wanted.json says; nothing if it is not there. Raises Damaged."""
    try:
        return read_json(folder.wanted, WantedNumbers)
    except FileNotFoundError:
        return WantedNumbers()


def write_wanted(folder: RunFolder, wanted: WantedNumbers) -> None:
    """Replaces wanted.json."""
    write_whole(folder.wanted, msgspec.json.encode(wanted) + b"\n")
