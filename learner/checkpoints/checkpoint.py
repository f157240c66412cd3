"""Checkpoints on disk: `step-00000012/` with the sharded state, `hf/` and `meta.json`; `latest.json` names the newest.

A checkpoint is durable before it is visible: everything is written into a temporary folder, synced and renamed, and
only then the pointer is replaced, atomically. After a crash at any point the previous checkpoint remains valid.

`meta.json` lists every file with its size and digest, by which a damaged checkpoint is recognised. Digests do not
protect against a person who can write into the folder, so state_files.py reads nothing that could run code.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from learner.checkpoints.file_facts import META, FileFacts, check_facts, facts_of
from services.errors import LearnerFault, UserError
from services.files import Damaged, read_json, sync, sync_tree, write_whole
from services.patience import while_folder_away
from services.telemetry.logs import get_logger

FORMAT = 2
PICKLED = 1
"""An older format. Its state was pickled, so it is never loaded."""
EXPORT = "hf"
HELD_BY = "config.json"
"""The file of an export that is locked while somebody plays by the checkpoint."""
_FOLDER = re.compile(r"step-(\d{8,12})")
log = get_logger("checkpoints")


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position of a run when the checkpoint was made."""

    step: int
    """Number of learner steps taken."""
    incarnation: int
    next_group: int
    """The first training group that no step has seen."""
    trained: int
    """Number of groups trained on."""


class _Meta(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    position: Position
    files: dict[str, FileFacts] = {}


class _Pointer(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    format: int = FORMAT


class _Best(_Pointer, frozen=True, kw_only=True):
    score: float
    measure: tuple[str, float] | None = None


_Found = TypeVar("_Found", bound=_Pointer)


def steps_in(root: Path) -> list[int]:
    """Returns the steps of all checkpoints in a folder, oldest first; [] if there is no such folder."""
    found = (_FOLDER.fullmatch(path.name) for path in root.glob("step-*"))
    return sorted(int(match[1]) for match in found if match)


def hold(folder: Path) -> BinaryIO:
    """Returns an open file: while it is open, no learner deletes the checkpoint with this folder. Where the storage has
    no locks, it may. Raises FileNotFoundError if the checkpoint is gone.
    """
    file = (folder / EXPORT / HELD_BY).open("rb")
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_SH)
    if not (folder / EXPORT / HELD_BY).exists():  # it was deleted while this waited
        file.close()
        raise FileNotFoundError(folder)
    return file


def _is_held(folder: Path) -> bool:
    """Returns whether somebody plays by the checkpoint. The file is closed again before the checkpoint is deleted: NFS
    keeps an open file in its folder, which then cannot be removed.
    """
    try:
        with (folder / EXPORT / HELD_BY).open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no such file, or there are no locks
        return False
    return False


class Checkpoints:
    """The checkpoints of one run. The learner commits them, and the controller records their scores.

    A score is recorded before the next commit can delete its checkpoint, because the learner holds the next version
    back until then.
    """

    def __init__(self, root: Path, keep: int) -> None:
        self.root = root
        self.keep = keep
        root.mkdir(parents=True, exist_ok=True)

    def folder(self, step: int) -> Path:
        """Returns the folder of a step's checkpoint, whether it exists or not."""
        return self.root / f"step-{step:08d}"

    def written(self, step: int) -> float:
        """Returns the Unix time at which the checkpoint of a step was made."""
        return (self.folder(step) / META).stat().st_mtime

    def latest(self) -> Position | None:
        """Returns the position of the newest checkpoint whose meta.json can be read; None before the first.

        Raises UserError if there are checkpoints, but all of them are damaged, and OSError if the folder is away.
        """
        readable = (meta.position for step in self._newest_first() if (meta := self._meta(step)) is not None)
        found = next(readable, None)
        if found is None and self.steps():
            raise UserError(f"no checkpoint in {self.root} can be read", "restore one, or start a new run (name=...)")
        return found

    def newest_whole(self, *, wait_s: float = 0.0) -> Position | None:
        """Returns the position of the newest checkpoint whose files all have their digests; None before the first.

        Newer checkpoints that are damaged are set aside. Raises UserError if there are checkpoints, but none is whole;
        then all stay as they are. A shared folder that is away damages none: it is read again until `wait_s` seconds
        have passed, and then this raises DeadlineExceeded.
        """
        return while_folder_away(self._newest_whole, seconds=wait_s, what=f"{self.root} could not be read")

    def _newest_whole(self) -> Position | None:
        damaged: dict[int, str] = {}
        for step in self._newest_first():
            try:
                position = self.check(step)
            except Damaged as error:
                damaged[step] = error.what
                continue
            for broken, reason in damaged.items():
                aside = self.folder(broken).with_name(f"damaged-{self.folder(broken).name}")
                shutil.rmtree(aside, ignore_errors=True)
                self.folder(broken).rename(aside)
                log.warning("a damaged checkpoint is set aside, and the run goes on from an older one",
                            damaged=reason, kept=str(aside), step=step)
            if damaged:
                self._write("latest.json", _Pointer(step=step))
            return position
        if damaged:
            raise UserError(f"no checkpoint in {self.root} is whole ({next(iter(damaged.values()))})",
                            "restore one, or start a new run (name=...)")
        return None

    def check(self, step: int) -> Position:
        """Raises Damaged if a file of the checkpoint is not as it was written, UserError for an old format."""
        folder = self.folder(step)
        meta = self._read(folder)
        if meta.format == PICKLED:
            raise UserError(f"{folder} was written by an older gagpo, in a format that runs code when it is loaded",
                            f"start a run from its weights: name=NEW model.path={folder / EXPORT} sft.enabled=false")
        if meta.format != FORMAT or meta.position.step != step:
            raise Damaged(f"{folder} has format {meta.format} and is of step {meta.position.step}", "restore it")
        check_facts(folder, meta.files)
        return meta.position

    def drafted(self, step: int) -> Path:
        """Returns the temporary folder in which the checkpoint of a step is written."""
        return self.root / f".tmp-{self.folder(step).name}"

    def draft(self, step: int) -> Path:
        """Creates the temporary folder of a step's checkpoint, and removes those of interrupted checkpoints."""
        for torn in self.root.glob(".tmp-*"):
            shutil.rmtree(torn)
        self.drafted(step).mkdir()
        return self.drafted(step)

    def commit(self, position: Position) -> Path:
        """Makes the draft of this step durable and the newest checkpoint. Returns its path.

        Raises OSError, for example because the disk is full, and can then be called again.
        """
        final = self.folder(position.step)
        if self.drafted(position.step).exists() or not final.exists():  # else an earlier call got as far as its rename
            self._seal(position, final)
        sync(self.root)
        self._write("latest.json", _Pointer(step=position.step))
        self._retain(position.step)
        return final

    def _seal(self, position: Position, final: Path) -> None:
        temporary = self.drafted(position.step)
        (temporary / META).write_bytes(
            msgspec.json.encode(_Meta(format=FORMAT, position=position, files=facts_of(temporary))))
        sync_tree(temporary)
        # A replayed step: the pointer names an older step, or this step's first checkpoint.
        twin = self._aside(final) if final.exists() else None
        temporary.rename(final)
        if twin is not None:
            shutil.rmtree(twin)

    def record_score(self, step: int, score: float, measure: tuple[str, float] | None = None) -> None:
        """Records the score of `step`. The best checkpoint is kept beside the newest; of equal scores, the earlier one.

        Scores of another `measure` (split and temperature) do not compare: a run that goes on with another one has its
        best from then on. A score whose measure is not known (None) compares with all.
        A second score of the best step takes the place of its first one: the step was taken again, because its
        checkpoint was damaged, and has other weights. Raises LearnerFault if `step` has no checkpoint: nobody would
        have the weights of that score.
        """
        if not self.folder(step).exists():
            raise LearnerFault(f"step {step} was evaluated, and its checkpoint is not in {self.root}")
        best = self._pointer("best.json", _Best)
        comparable = best is not None and best.measure in (None, measure) and self.folder(best.step).exists()
        if best is None or not comparable or score > best.score or best.step == step:
            self._write("best.json", _Best(step=step, score=score, measure=measure))

    def best(self) -> int | None:
        """Returns the step of the best evaluated checkpoint, or None."""
        found = self._pointer("best.json", _Best)
        return None if found is None else found.step

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints that are kept, oldest first."""
        return steps_in(self.root)

    def _newest_first(self) -> list[int]:
        """Returns the steps up to the one that latest.json names, or all if that one does not exist."""
        steps, pointer = self.steps()[::-1], self._pointer("latest.json", _Pointer)
        if pointer is None or pointer.step not in steps:
            if pointer is not None:
                log.warning("latest.json names a checkpoint that is not there", step=pointer.step)
            return steps
        return [step for step in steps if step <= pointer.step]

    def _meta(self, step: int) -> _Meta | None:
        try:
            return self._read(self.folder(step))
        except Damaged as error:
            log.warning("a checkpoint cannot be read", reason=error.what)
            return None

    def _read(self, folder: Path) -> _Meta:
        try:
            return read_json(folder / META, _Meta)
        except FileNotFoundError:  # another OSError says nothing about the checkpoint: a shared folder may be away
            raise Damaged(f"{folder / META} is not there", "restore it") from None

    def _pointer(self, name: str, kind: type[_Found]) -> _Found | None:
        try:
            return read_json(self.root / name, kind)
        except FileNotFoundError:
            return None
        except Damaged as error:
            log.warning("passed over", reason=error.what)
            return None

    def _retain(self, newest: int) -> None:
        older = [step for step in self.steps() if step <= newest]
        keep = {*older[-self.keep:], self.best()}
        for step in self.steps():
            if step not in keep and not _is_held(self.folder(step)):
                shutil.rmtree(self._aside(self.folder(step)))

    def _aside(self, checkpoint: Path) -> Path:
        """Renames a checkpoint that is to be deleted, and returns its new path. A crash while it is deleted leaves no
        checkpoint without its meta.json, and draft() removes the rest."""
        aside = self.root / f".tmp-gone-{checkpoint.name}"
        shutil.rmtree(aside, ignore_errors=True)
        checkpoint.rename(aside)
        return aside

    def _write(self, name: str, value: _Pointer) -> None:
        write_whole(self.root / name, msgspec.json.encode(value))
