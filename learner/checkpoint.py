"""Checkpoints on disk: `step-00000012/` with the sharded state, `hf/` and `meta.json`; `latest.json` names the newest.

Durable before it is visible: everything is written into a temporary folder, synced, renamed, and only then named by
the pointer, which is replaced atomically. A crash at any point leaves the previous checkpoint in force.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from services.errors import LearnerFault

FORMAT = 1
EXPORT = "hf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a run was."""

    step: int
    """Learner steps taken."""
    incarnation: int
    next_group: int
    """The first training group that no step has seen."""
    trained: int
    """Groups trained on."""


class Checkpoints:
    """The checkpoints of one run. The learner commits; the controller records scores, and does so before the learner,
    which holds the next version back until then, can commit and clear away again."""

    def __init__(self, root: Path, keep: int) -> None:
        self.root = root
        self.keep = keep
        root.mkdir(parents=True, exist_ok=True)

    def folder(self, step: int) -> Path:
        """Where the checkpoint of a step is or would be."""
        return self.root / f"step-{step:08d}"

    def written(self, step: int) -> float:
        """Unix time at which the checkpoint of a step was made."""
        return (self.folder(step) / "meta.json").stat().st_mtime

    def latest(self) -> Position | None:
        """None before the first. Raises LearnerFault when the pointer names what is not there or not readable."""
        pointer = _read_json(self.root / "latest.json")
        if pointer is None:
            return None
        meta = _read_json(self.folder(pointer["step"]) / "meta.json")
        if meta is None or meta["format"] != FORMAT:
            raise LearnerFault(f"{self.folder(pointer['step'])} is missing or of another format than {FORMAT}")
        return Position(**meta["position"])

    def commit(self, position: Position, write: Callable[[Path], None]) -> Path:
        """Calls `write` with a temporary folder, then makes it the newest checkpoint; returns where it is."""
        temporary, final = self.root / f".tmp-step-{position.step:08d}", self.folder(position.step)
        for torn in self.root.glob(".tmp-*"):
            shutil.rmtree(torn)
        temporary.mkdir()
        write(temporary)
        (temporary / "meta.json").write_text(json.dumps({"format": FORMAT, "position": asdict(position)}))
        sync_tree(temporary)
        if final.exists():  # a replayed step: the pointer still names an older one, or this very step's twin
            shutil.rmtree(final)
        temporary.rename(final)
        _sync(self.root)
        self._write_json("latest.json", {"format": FORMAT, "step": position.step})
        self._retain(position.step)
        return final

    def record_score(self, step: int, score: float) -> None:
        """An evaluation of `step`: the best checkpoint is kept beside the newest. Of equals the earlier stays.

        Raises LearnerFault where `step` has no checkpoint: the score would be of weights that nobody has.
        """
        if not self.folder(step).exists():
            raise LearnerFault(f"step {step} was evaluated, and its checkpoint is not in {self.root}")
        best = _read_json(self.root / "best.json")
        if best is None or score > best["score"]:
            self._write_json("best.json", {"format": FORMAT, "step": step, "score": score})

    def best(self) -> int | None:
        """The step of the best evaluated checkpoint."""
        found = _read_json(self.root / "best.json")
        return None if found is None else int(found["step"])

    def steps(self) -> list[int]:
        """All that are kept, oldest first."""
        return sorted(int(path.name.removeprefix("step-")) for path in self.root.glob("step-*"))

    def _retain(self, newest: int) -> None:
        older = [step for step in self.steps() if step <= newest]
        keep = {*older[-self.keep:], self.best()}
        for step in self.steps():
            if step not in keep:
                shutil.rmtree(self.folder(step))

    def _write_json(self, name: str, value: dict[str, Any]) -> None:
        temporary = self.root / f".{name}"
        temporary.write_text(json.dumps(value))
        _sync(temporary)
        temporary.replace(self.root / name)
        _sync(self.root)


def sync_tree(folder: Path) -> None:
    """fsync of every file and folder below, then of the folder."""
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read_json(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None
