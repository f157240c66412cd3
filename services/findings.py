"""What `gagpo doctor` finds. Here, because environments have findings of their own."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

Status = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found; `mend` is a command or an action, empty where nothing is wrong."""

    check: str
    status: Status
    detail: str
    mend: str = ""


def installed(name: str) -> str | None:
    """Version of an installed distribution, None without it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
