"""Checkpoints on disk: `step-00000012/` with the sharded state, `hf/` and `meta.json`; `latest.json` names the newest.

An evaluated step without a checkpoint has `weights-00000011/` with `hf/` and `meta.json` alone: enough to export it if
it is the best one, and a fraction of the bytes. A run never continues from it.

A checkpoint is durable before it is visible: everything is written into a temporary folder, synced and renamed, and
only then the pointer is replaced, atomically. After a crash at any point the previous checkpoint remains valid.

`meta.json` lists every file with its size and digest, by which a damaged checkpoint is recognised. Digests do not
protect against a person who can write into the folder, so state_files.py reads nothing that could run code.

`mirror.json` in the run's folder records what an object store has of the run. The driver writes it, and the learner
reads it: an episode is retired from Redis only after the checkpoint that trained on it is in the object store too. So
the loss of the run's folder costs no more than the loss of the learner: the later steps are replayed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from learner.checkpoints.file_facts import META, FileFacts, check_facts, facts_of
from services.errors import LearnerFault, UserError
from services.files import Damaged, open_plain, read_json, sync, sync_tree, write_whole
from services.outages import retry_files
from services.telemetry.logs import get_logger

FORMAT = 2
PICKLED = 1
"""An older format. Its state was pickled, so it is never loaded."""
EXPORT = "hf"
HELD_BY = "config.json"
"""The file of an export that is locked while somebody plays with the checkpoint."""
STATE, WEIGHTS = "step", "weights"
"""First word of a folder's name: a checkpoint, or only the weights of an evaluated step."""
MIRROR = "mirror.json"
"""File in the run's folder that records what an object store has of the run."""
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


_SomePointer = TypeVar("_SomePointer", bound=_Pointer)


def steps_in(root: Path, kind: str = STATE) -> list[int]:
    """Returns the steps of all folders of this kind in `root`, oldest first; [] if there is no `root`."""
    matches = (re.fullmatch(rf"{kind}-(\d{{8,12}})", path.name) for path in root.glob(f"{kind}-*"))
    return sorted(int(match[1]) for match in matches if match)


def hold(folder: Path) -> BinaryIO:
    """Returns an open file. While it is open, no learner deletes the checkpoint in this folder, if the storage has
    locks. Raises FileNotFoundError if the checkpoint is gone, Damaged if the file is a pipe or a device.
    """
    with open_plain(folder / EXPORT / HELD_BY) as plain:
        file = os.fdopen(os.dup(plain.fileno()), "rb")
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_SH)
    if not (folder / EXPORT / HELD_BY).exists():  # it was deleted while this waited
        file.close()
        raise FileNotFoundError(folder)
    return file


def _is_held(folder: Path) -> bool:
    """Returns whether somebody plays with the checkpoint.

    The file is closed before the checkpoint is deleted: NFS keeps an open file in its folder, which then cannot be
    removed.
    """
    try:
        handle = os.open(folder / EXPORT / HELD_BY, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # it may be a pipe
    except OSError:  # there is no such file
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there are no locks
        return False
    finally:
        os.close(handle)
    return False


class Checkpoints:
    """The checkpoints of one run. The learner commits them, and the controller records their scores.

    A score is recorded before the next commit can delete its checkpoint, because the learner publishes no version
    before that.
    """

    def __init__(self, root: Path, keep: int) -> None:
        """Makes the folder `root`. Raises OSError if the run's folder is unavailable."""
        self.root = root
        self.keep = keep
        root.mkdir(exist_ok=True)

    def folder(self, step: int) -> Path:
        """Returns the folder of a step's checkpoint, whether it exists or not."""
        return self.root / f"{STATE}-{step:08d}"

    def weights_folder(self, step: int) -> Path:
        """Returns the folder with the weights of a step, which is that of its checkpoint if there is one. It may not
        exist."""
        folder = self.folder(step)
        return folder if folder.exists() else self._only_weights(step)

    def _only_weights(self, step: int) -> Path:
        return self.root / f"{WEIGHTS}-{step:08d}"

    def written(self, step: int) -> float:
        """Returns the Unix time at which the checkpoint of a step was made."""
        return (self.folder(step) / META).stat().st_mtime

    def latest(self) -> Position | None:
        """Returns the position of the newest checkpoint whose meta.json can be read; None before the first.

        Raises UserError if all checkpoints are damaged, and OSError if the folder is unavailable.
        """
        readable = (meta.position for step in self._newest_first() if (meta := self._meta(step)) is not None)
        position = next(readable, None)
        if position is None and self.steps():
            raise UserError(f"no checkpoint in {self.root} can be read", "restore one, or start a new run (name=...)")
        return position

    def newest_intact(self, *, wait_s: float = 0.0) -> Position | None:
        """Returns the position of the newest checkpoint whose files all have their digests; None before the first.

        Newer checkpoints that are damaged are renamed. Raises UserError if all checkpoints are damaged, or if the
        newest that is not has the pickled format; then nothing is renamed. A shared folder that is unavailable damages
        none: it is read again for up to `wait_s` seconds, and then this raises DeadlineExceeded.
        """
        return retry_files(self._newest_intact, seconds=wait_s, what=f"{self.root} could not be read")

    def _newest_intact(self) -> Position | None:
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
                log.warning("a damaged checkpoint is renamed, and the run continues from an older one",
                            damaged=reason, kept=str(aside), step=step)
            if damaged:
                self._write("latest.json", _Pointer(step=step))
            return position
        if damaged:
            raise UserError(f"all checkpoints in {self.root} are damaged ({next(iter(damaged.values()))})",
                            "restore one, or start a new run (name=...)")
        return None

    def check(self, step: int) -> Position:
        """Raises Damaged if a file of the checkpoint has changed since it was written, UserError for an old format."""
        return self._check(self.folder(step), step)

    def check_weights(self, step: int) -> None:
        """Raises as `check` does, for the folder with the weights of the step."""
        self._check(self.weights_folder(step), step)

    def _check(self, folder: Path, step: int) -> Position:
        meta = self._read(folder)
        if meta.format == PICKLED:
            raise UserError(f"{folder} was written by an older gagpo, in a format that runs code when it is loaded",
                            f"start a run from its weights: name=NEW model.path={folder / EXPORT} sft.enabled=false")
        if meta.format != FORMAT or meta.position.step != step:
            raise Damaged(f"{folder} has format {meta.format} and is of step {meta.position.step}", "restore it")
        check_facts(folder, meta.files)
        return meta.position

    def drafted(self, step: int) -> Path:
        """Returns the temporary folder in which the checkpoint or the weights of a step are written."""
        return self.root / f".tmp-{self.folder(step).name}"

    def draft(self, step: int) -> Path:
        """Creates the temporary folder of a step's checkpoint, and removes those of interrupted checkpoints."""
        for torn in self.root.glob(".tmp-*"):
            shutil.rmtree(torn)
        self.drafted(step).mkdir()
        return self.drafted(step)

    def commit(self, position: Position, digests: Mapping[str, str] | None = None) -> Path:
        """Makes the draft of this step durable and the newest checkpoint. Returns its path.

        `digests`: path below the draft -> digest, of files that were hashed while they were written. Other files are
        read again. Raises OSError, for example if the disk is full, and can then be called again.
        """
        final = self.folder(position.step)
        self._seal(position, final, digests)
        self._write("latest.json", _Pointer(step=position.step))
        self._retain(position.step)
        return final

    def commit_weights(self, position: Position, digests: Mapping[str, str] | None = None) -> Path:
        """Makes the draft durable as the weights of an evaluated step, from which no run continues. Returns its path.

        Removes the weights since the newest checkpoint that are no longer the best. `digests` and errors: see `commit`.
        """
        final = self._only_weights(position.step)
        self._seal(position, final, digests)
        newest = max(self.steps(), default=0)
        self._remove(self._only_weights(step) for step in self._weights_steps()
                     if newest < step < position.step and step != self.best())
        return final

    def _seal(self, position: Position, final: Path, digests: Mapping[str, str] | None) -> None:
        """Renames the draft to `final` once it is durable."""
        temporary = self.drafted(position.step)
        if temporary.exists() or not final.exists():  # else an earlier call got as far as its rename
            (temporary / META).write_bytes(msgspec.json.encode(
                _Meta(format=FORMAT, position=position, files=facts_of(temporary, digests))))
            sync_tree(temporary)
            # A replayed step may have a checkpoint already. The pointer names it, or an older step.
            replaced = self._hide(final) if final.exists() else None
            temporary.rename(final)
            if replaced is not None:
                shutil.rmtree(replaced)
        sync(self.root)

    def record_score(self, step: int, score: float, measure: tuple[str, float] | None = None) -> None:
        """Records the score of `step`. The best weights are kept alongside the newest; of equal scores, the earlier.

        Scores of another `measure` (split and temperature) do not compare: a run that continues with another measure
        has its best step from then on. A best score of unknown measure (None) compares with all.
        A second score of the best step replaces its first one: the step was taken again, and may have other weights.
        Raises LearnerFault if the weights of `step` are not kept.
        """
        if not self.weights_folder(step).exists():
            raise LearnerFault(f"step {step} was evaluated, and its weights are not in {self.root}")
        best, new = self._pointer("best.json", _Best), _Best(step=step, score=score, measure=measure)
        if self._is_better(new, best):
            self._write("best.json", new)

    def choose_best(self, scores: Iterable[tuple[int, float, tuple[str, float] | None]]) -> None:
        """Chooses the best step again, when the run goes back to a step before the current best.

        `scores`: step, score and measure, in the order in which they were recorded. Steps whose weights are gone are
        left out.
        """
        best, kept = None, self.weights_steps()
        for step, score, measure in scores:
            new = _Best(step=step, score=score, measure=measure)
            if step in kept and self._is_better(new, best):
                best = new
        if best is None:
            (self.root / "best.json").unlink(missing_ok=True)
        else:
            self._write("best.json", best)

    def _is_better(self, new: _Best, best: _Best | None) -> bool:
        if best is None or best.measure not in (None, new.measure) or not self.weights_folder(best.step).exists():
            return True
        return new.score > best.score or new.step == best.step

    def best(self) -> int | None:
        """Returns the step of the best evaluated checkpoint, or None."""
        best = self._pointer("best.json", _Best)
        return None if best is None else best.step

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints, oldest first. Raises OSError if the folder is unavailable."""
        self.root.stat()
        return steps_in(self.root)

    def weights_steps(self) -> list[int]:
        """Returns the steps whose weights are kept, with a checkpoint or without one, oldest first."""
        return sorted({*self.steps(), *self._weights_steps()})

    def _weights_steps(self) -> list[int]:
        return steps_in(self.root, WEIGHTS)

    def folders(self) -> list[Path]:
        """Returns the folders of all checkpoints and weights that are kept."""
        return [*map(self.folder, self.steps()), *map(self._only_weights, self._weights_steps())]

    def _newest_first(self) -> list[int]:
        """Returns the steps up to the one in latest.json, or all if that step has no checkpoint."""
        steps, pointer = self.steps()[::-1], self._pointer("latest.json", _Pointer)
        if pointer is None or pointer.step not in steps:
            if pointer is not None:
                log.warning("latest.json names a checkpoint that does not exist", step=pointer.step)
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
        except FileNotFoundError:  # another OSError may mean that the storage is unavailable
            raise Damaged(f"{folder / META} does not exist", "restore it") from None

    def _pointer(self, name: str, kind: type[_SomePointer]) -> _SomePointer | None:
        try:
            return read_json(self.root / name, kind)
        except FileNotFoundError:
            return None
        except Damaged as error:
            log.warning("a pointer is ignored", reason=error.what)
            return None

    def _retain(self, newest: int) -> None:
        """Removes what the checkpoint of step `newest` makes unnecessary.

        If the run goes back, it goes back to this checkpoint. So the weights that are the best now stay until the next
        checkpoint, even if a later step is better.
        """
        steps, best = self.steps(), self.best()
        keep = {*[step for step in steps if step <= newest][-self.keep:], best}
        self._remove(self.folder(step) for step in steps if step not in keep)
        self._remove(self._only_weights(step) for step in self._weights_steps()
                     if step in steps or (step <= newest and step != best))

    def _remove(self, folders: Iterable[Path]) -> None:
        for folder in folders:
            if not _is_held(folder):
                shutil.rmtree(self._hide(folder))

    def _hide(self, checkpoint: Path) -> Path:
        """Renames a checkpoint that will be deleted, and returns its new path.

        So a crash during the deletion leaves no checkpoint without meta.json, and draft() removes the rest.
        """
        hidden = self.root / f".tmp-gone-{checkpoint.name}"
        shutil.rmtree(hidden, ignore_errors=True)
        checkpoint.rename(hidden)
        return hidden

    def _write(self, name: str, value: _Pointer) -> None:
        write_whole(self.root / name, msgspec.json.encode(value))


class MirrorState(msgspec.Struct, kw_only=True):
    """Content of mirror.json."""

    format: int = 1
    url: str
    """The run's folder in the object store."""
    owner: str
    """Name of this copy of the run. Another copy that continues the run writes another name into the object store."""
    step: int = 0
    """Learner step of the newest checkpoint that is completely in the object store; 0 before the first."""
    files: dict[str, tuple[int, int]] = {}
    """Path below the run's folder -> size and modification time in ns of the file that was uploaded last."""


def mirrored_step(run_dir: Path) -> int:
    """Returns the step of the newest checkpoint that is completely in the object store; 0 before the first, and while
    the run's folder is unavailable. Raises Damaged."""
    try:
        return read_json(run_dir / MIRROR, MirrorState).step
    except OSError:
        return 0
