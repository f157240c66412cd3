"""A run's folder as the explorer reads it: metrics, evaluations, archive, config, tokenizer. Knows nothing of HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deploy.explorer.groups import Group, read_group
from deploy.explorer.index import ArchiveIndex, GroupEntry
from deploy.runs.folder import RunFolder
from deploy.runs.history import RunHistory
from services.config.file import read_tree
from services.config.tree import CreditSection
from services.errors import UserError
from services.weights.headers import read_tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of an answer as text."""

    text: str
    logprob: float
    ratio: float | None
    """exp(learner's logprob - sampler's); None: not recorded."""


class ExploredRun:
    """One run under a name that no other run of this explorer has. Raises UserError for a folder that holds none."""

    def __init__(self, path: Path, name: str) -> None:
        folder = RunFolder(path)
        if not path.is_dir():
            raise UserError(f"there is no folder {path}", "give runs/<name>")
        if not folder.config_file.exists():
            raise UserError(f"{path} is no run's folder", "give runs/<name>")
        if not (path / "episodes").is_dir() and not folder.metrics.exists():
            raise UserError(f"{path} has neither episodes nor metrics yet", "look again when it has trained a step")
        self.path, self.name = path, name
        self.index = ArchiveIndex(path)
        self._history = RunHistory(folder)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One row per learner step."""
        return self._history.metrics

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """One row per label and temperature."""
        return self._history.evaluations

    @property
    def finished(self) -> bool:
        """Whether its final table is there."""
        return RunFolder(self.path).summary.exists()

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.yaml as it stands: a run of an older version may have keys that this one does not know."""
        return read_tree(RunFolder(self.path).config_file)

    @cached_property
    def credit(self) -> CreditSection:
        """How it assigned credit; keys that the config does not name are at their defaults."""
        learner = self.config.get("learner")
        try:
            return CreditSection(**(learner or {}).get("credit", {}))
        except (ValidationError, AttributeError, TypeError) as error:
            raise UserError(f"learner.credit in {self.path}/config.yaml: {error}".splitlines()[0],
                            "mend it there, or explore with the version that trained the run") from None

    @cached_property
    def tokenizer(self) -> Any:
        """The policy's own; None where the folder no longer holds it."""
        model = (self.config.get("model") or {}).get("path")
        folder = RunFolder(self.path)
        places = [folder.cold_model, folder.trained_model, *([Path(model)] if model else [])]
        found = next((place / "tokenizer.json" for place in places if (place / "tokenizer.json").exists()), None)
        return None if found is None else read_tokenizer(found)

    def text(self, ids: Sequence[int]) -> str | None:
        """All tokens as text, special ones too; None without the tokenizer."""
        return None if self.tokenizer is None else self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def piece(self, token: int) -> str:
        """One token as text: of a character that several tokens make up, a replacement character."""
        return f"⟨{token}⟩" if self.tokenizer is None else self.tokenizer.decode([token], skip_special_tokens=False)

    def groups(self) -> list[GroupEntry]:
        """All groups of the archive as it is now."""
        self.index.refresh()
        return self.index.groups()

    def group(self, file: str, group: str) -> Group | None:
        """None where the archive has no such group."""
        for _ in range(2):  # a file may be replaced between its index and its rows
            self.index.refresh()
            entry = self.index.find(file, group)
            if entry is None:
                return None
            if (found := read_group(self.path / "episodes", entry)) is not None:
                return found
        return None


def open_runs(paths: Sequence[Path]) -> list[ExploredRun]:
    """Runs under the names of their folders; a second one of the same name gets a number. Raises UserError."""
    runs: list[ExploredRun] = []
    for path in paths:
        name = path.resolve().name
        taken = {run.name for run in runs}
        runs.append(ExploredRun(path, next(n for n in (name, *(f"{name}-{i}" for i in range(2, 9))) if n not in taken)))
    return runs
