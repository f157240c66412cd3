"""The findings of `gagpo doctor`. They are defined here because environments report findings too."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

Status = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check. `fix` is a command or an action; it is empty if nothing is wrong."""

    check: str
    status: Status
    detail: str
    fix: str = ""


def installed(name: str) -> str | None:
    """Returns the version of an installed distribution, or None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
