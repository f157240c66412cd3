"""Reads the folder of a run: metrics, evaluations, archive, config, tokenizer. Independent of HTTP."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import msgspec
from pydantic import ValidationError

from deploy.explorer.groups import Group, read_group
from deploy.explorer.index import ArchiveIndex, GroupEntry
from deploy.runs.folder import RunFolder
from deploy.runs.history import RunHistory
from deploy.runs.policies import find_run
from services.config.file import read_tree
from services.config.refusals import refusal
from services.config.tree import CreditSection
from services.errors import UserError
from services.files import NOT_JSON, Damaged, open_plain, read_bounded
from services.telemetry.logs import short_line
from services.weights.headers import read_tokenizer

MOST_RUNS = 8
"""Number of runs that explore.css has colours for."""
LOG_LINES, LOG_BYTES = 400, 1 << 18
"""Most lines of the log that are shown, and bytes of its end that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The content of a run's config.yaml."""

    config: dict[str, Any]
    """All its keys; {} if it cannot be read."""
    credit: CreditSection | None
    """The options of its estimator, with defaults for keys that it lacks. None: they cannot be read."""
    wrong: str
    """The reason why something cannot be read, in one line, or "" if all can."""


def _read_settings(file: Path) -> RunSettings:
    try:
        config = read_tree(file)
    except (OSError, UserError) as error:
        return RunSettings(config={}, credit=None, wrong=str(error))
    try:
        return RunSettings(config=config, credit=_options(config, file), wrong="")
    except UserError as error:
        return RunSettings(config=config, credit=None, wrong=f"{file}: {error}")


def _options(config: dict[str, Any], file: Path) -> CreditSection:
    """Returns the options of a config's estimator. Raises UserError for an unknown option or a bad value."""
    from learner.credit.registry import SECTION, options_of

    try:
        return options_of(CreditSection(**(config.get("learner") or {}).get("credit", {})))
    except ValidationError as error:
        raise refusal(error, file, SECTION) from None
    except (AttributeError, TypeError):
        raise UserError(f"{SECTION.rstrip('.')} is no section", "give it keys, such as `estimator: gagpo`") from None


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of an answer as text."""

    text: str
    logprob: float
    ratio: float | None
    """exp(learner's logprob - sampler's logprob). None: not recorded."""


class ExploredRun:
    """One run, with a name that is unique in this explorer. Raises UserError for a folder without a run, and for a run
    without episodes and metrics."""

    def __init__(self, path: Path, name: str) -> None:
        folder = find_run(path)
        if not (path / "episodes").is_dir() and not folder.metrics.exists():
            raise UserError(f"{path} has neither episodes nor metrics yet", "look again when it has trained a step")
        self.path, self.name = path, name
        self.index = ArchiveIndex(path)
        self._history = RunHistory(folder)
        self._config_file = folder.config_file
        self._last_settings: tuple[tuple[int, int] | None, RunSettings] | None = None

    @property
    def _settings(self) -> RunSettings:
        """Returns the present config.yaml, read again when it has changed: a run may continue with more steps."""
        marks = None
        with suppress(OSError):
            stat = self._config_file.stat()
            marks = stat.st_size, stat.st_mtime_ns
        if self._last_settings is None or self._last_settings[0] != marks:
            self._last_settings = marks, _read_settings(self._config_file)
        return self._last_settings[1]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Returns one row per learner step; [] if the file cannot be read, which `damage` then names."""
        with suppress(OSError, Damaged):
            return self._history.metrics
        return []

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """Returns one row per label and temperature; [] if the file cannot be read, which `damage` then names."""
        with suppress(OSError, Damaged):
            return self._history.evaluations
        return []

    @property
    def damage(self) -> list[str]:
        """Returns a sentence for each file that cannot be read, or only in part. It reads them to their end."""
        wrong = ["model in config.yaml is no section with a path"] if self._model is None else []
        return [*self._history.damage, *wrong]

    @property
    def finished(self) -> bool:
        """Returns whether its final table exists."""
        return RunFolder(self.path).summary.exists()

    @property
    def warnings(self) -> list[str]:
        """Returns a sentence for each archive file that cannot be read, and one if the config cannot be."""
        wrong = self._settings.wrong
        return [*self.index.warnings, *([wrong] if wrong else [])]

    @property
    def config(self) -> dict[str, Any]:
        """Returns the present config.yaml, unchecked; {} if it cannot be read."""
        return self._settings.config

    @property
    def credit(self) -> CreditSection | None:
        """Returns the options of the run's estimator, or None if they cannot be read. `warnings` say why."""
        return self._settings.credit

    @property
    def by_agents(self) -> bool:
        """Returns whether agents with code of their own play."""
        section: object = self.config.get("agent")
        return isinstance(section, dict) and bool(cast("dict[str, object]", section).get("name"))

    @property
    def _model(self) -> str | None:
        """Returns model.path, "" if the config has none, or None if it has something else in its place."""
        section = self.config.get("model") or {}
        path = (section.get("path") or "") if isinstance(section, dict) else None
        return path if isinstance(path, str) else None

    @cached_property
    def tokenizer(self) -> Any:
        """Returns the policy's tokenizer, or None if the folder does not hold it any more."""
        model, folder = self._model, RunFolder(self.path)
        places = [folder.cold_model, folder.trained_model, *([Path(model)] if model else [])]
        file = next((place / "tokenizer.json" for place in places if (place / "tokenizer.json").exists()), None)
        return None if file is None else read_tokenizer(file)

    def text(self, ids: Sequence[int]) -> str | None:
        """Returns all tokens as text, including special ones. None without the tokenizer."""
        return None if self.tokenizer is None else self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def piece(self, token: int) -> str:
        """Returns one token as text. A part of a character becomes a replacement character."""
        return f"⟨{token}⟩" if self.tokenizer is None else self.tokenizer.decode([token], skip_special_tokens=False)

    def config_text(self) -> str:
        """Returns the content of its config.yaml, "" if it cannot be read. `warnings` say why."""
        with suppress(OSError, Damaged):
            return read_bounded(self._config_file).decode(errors="replace")
        return ""

    def log(self) -> list[tuple[str, str]]:
        """Returns process and text of the last lines of log.jsonl, the newest first. Lines that are damaged are left
        out."""
        try:
            with open_plain(self.path / "log.jsonl") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
                lines = file.read().splitlines()[-LOG_LINES:]
        except (OSError, Damaged):
            return []
        entries: list[tuple[str, str]] = []
        for line in reversed(lines):
            with suppress(KeyError, TypeError, *NOT_JSON):
                event = msgspec.json.decode(line, type=dict[str, Any])
                trace = f"\n{event['exception']}" if "exception" in event else ""
                entries.append((str(event["process"]), short_line(event) + trace))
        return entries

    def groups(self) -> list[GroupEntry]:
        """Returns all present groups of the archive."""
        self.index.refresh()
        return self.index.groups()

    def group(self, file: str, group: str) -> Group | None:
        """Returns a group, or None if the archive does not have it."""
        for _ in range(2):  # the file may be replaced between reading its index and its rows
            self.index.refresh()
            entry = self.index.find(file, group)
            if entry is None:
                return None
            if (read := read_group(self.path / "episodes", entry)) is not None:
                return read
        return None


def open_runs(paths: Sequence[Path]) -> list[ExploredRun]:
    """Opens runs, named by their folders. A second run of the same name gets a number. Raises UserError."""
    if len(paths) > MOST_RUNS:
        raise UserError(f"{len(paths)} runs are too many to see side by side", f"give at most {MOST_RUNS}")
    runs: list[ExploredRun] = []
    for path in paths:
        name = path.resolve().name
        taken = {run.name for run in runs}
        names = (name, *(f"{name}-{i}" for i in range(2, MOST_RUNS + 1)))
        runs.append(ExploredRun(path, next(one for one in names if one not in taken)))
    return runs
