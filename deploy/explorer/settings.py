"""Reads config.yaml of a run for the explorer: unchecked, because a run of an older version may have unknown keys."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from services.config.file import read_tree
from services.config.refusals import refusal
from services.config.tree import CreditSection
from services.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The content of a run's config.yaml."""

    config: dict[str, Any]
    """All its keys; {} if it cannot be read."""
    credit: CreditSection | None
    """The options of its estimator, with defaults for keys that it lacks. None: they cannot be read."""
    wrong: str
    """The reason why something cannot be read, in one line, or "" if all can."""


class SettingsFile:
    """A config.yaml that is read again when it has changed: a run may go on with more steps while it is explored."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[tuple[int, int] | None, RunSettings] | None = None

    def read(self) -> RunSettings:
        """Returns the present content."""
        marks = None
        with suppress(OSError):
            stat = self._path.stat()
            marks = stat.st_size, stat.st_mtime_ns
        if self._known is None or self._known[0] != marks:
            self._known = marks, _read(self._path)
        return self._known[1]


def _read(file: Path) -> RunSettings:
    try:
        config = read_tree(file)
    except (OSError, UserError) as error:
        return RunSettings(config={}, credit=None, wrong=str(error))
    try:
        return RunSettings(config=config, credit=_options(config, file), wrong="")
    except UserError as error:
        return RunSettings(config=config, credit=None, wrong=f"{file}: {error}")


def _options(config: dict[str, Any], file: Path) -> CreditSection:
    """Returns the options of a config's estimator. Raises UserError for what they cannot be."""
    from learner.credit.registry import SECTION, options_of

    try:
        return options_of(CreditSection(**(config.get("learner") or {}).get("credit", {})))
    except ValidationError as error:
        raise refusal(error, file, SECTION) from None
    except (AttributeError, TypeError):
        raise UserError(f"{SECTION.rstrip('.')} is no section", "give it keys, such as `estimator: gagpo`") from None
