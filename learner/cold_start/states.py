"""States of a cold start on the learner's ranks, from which it continues after a rank, a node, Ray or the driver died.

`state-00001200/` is the learner's checkpoint after 1200 updates. Its `meta.json` has the position of the training, the
digest of the order, and the digests of all files. The folder gets its name once it is durable. At most two states are
on disk: the newest, and the one before it or the draft of the next.
"""

from __future__ import annotations

import hashlib
import math
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from learner.checkpoints.background import Background
from learner.checkpoints.file_facts import META, FileFacts, check_facts, digests, facts_of
from learner.cold_start.sft import Order, Reached
from learner.cold_start.sft_data import ROWS
from services.amounts import GIB
from services.config.tree import Config
from services.files import Damaged, read_json, sync, sync_tree
from services.outages import retry_files

if TYPE_CHECKING:
    from learner.trainer import Learner

FORMAT = 1
LEAST_S = 60.0
"""Least seconds of training between two states."""
COST = 1 / 20
"""Share of the time that writing states may take."""
T = TypeVar("T")
_FOLDER = re.compile(r"state-(\d{8,})")


def is_due(trained_s: float, writing_s: float) -> bool:
    """Whether a state should be written after `trained_s` of training. `writing_s`: time that writing one takes."""
    return trained_s >= max(LEAST_S, writing_s / COST)


def digest_of(config: Config, order: Order) -> str:
    """Returns a digest of everything that affects the weights. Training continues only from a state with this digest.

    The packing of rows, the number of ranks and the place of the moments may change.
    """
    model = [path.name for path in sorted(order.model.iterdir()) if path.is_file()]
    facts = {
        "format": FORMAT, "model": digests(order.model, model), "rows": digests(order.work, [ROWS]),
        "budget": asdict(order.budget), "seed": order.seed, "dtype": config.model.dtype,
        "sft": config.sft.model_dump(include={"batch_rows", "lr", "prompt_loss"}),
        "learner": config.learner.model_dump(include={"betas", "weight_decay", "grad_clip", "lora"}),
    }
    return hashlib.blake2b(msgspec.json.encode(facts, order="sorted"), digest_size=16).hexdigest()


class _Meta(msgspec.Struct, frozen=True, kw_only=True):
    order: str
    files: dict[str, FileFacts]
    updates: int
    rows: int
    seconds: float
    recent: list[tuple[float | None, float | None]]
    """None for NaN, which JSON does not have."""

    @property
    def reached(self) -> Reached:
        recent = [(_number(response), _number(prompt)) for response, prompt in self.recent]
        return Reached(updates=self.updates, rows=self.rows, seconds=self.seconds, recent=recent)


class States:
    """The states of one cold start in the order's `work`. `load` and `save` are collectives of all ranks.

    Only rank 0 reads and writes meta.json, and decides when to save.
    """

    def __init__(self, learner: Learner, order: Order) -> None:
        self._learner, self._order, self._folder = learner, order, order.work
        self._digest = ""
        self._wait_s = learner.config.learner.collective_s
        self._saved_at, self._writing_s = time.monotonic(), 0.0
        self._newest = 0
        self._begun: tuple[float, tuple[str, ...]] | None = None
        self._reported_full = False

    def facts(self) -> dict[str, Any]:
        """Returns what rank 0 reports to the driver.

        `kept`: number of updates of the newest intact state. `begun`: time and lines for the user, set by `load` and
        when the disk has no room; None before that.
        """
        return {"kept": self._newest, "begun": self._begun}

    def load(self) -> Reached:
        """Loads the newest intact state of this order. Returns its position; Reached() without a state."""
        rank_group = self._learner.rank_group
        state = None if rank_group.rank else self._patiently(self._find)
        reached, lines = rank_group.all_gather(state)[0]
        if reached.updates:
            self._learner.load_part(self._named(reached.updates))
        self._newest, self._begun, self._saved_at = reached.updates, (time.time(), lines), time.monotonic()
        return reached

    def due(self) -> bool:
        """Whether it is time to write a state, by the clock of this rank."""
        return is_due(time.monotonic() - self._saved_at, self._writing_s)

    def save(self, reached: Reached) -> float:
        """Writes a state if the disk has room for it and for the model. Returns the seconds that this rank needed."""
        began, rank = time.monotonic(), self._learner.rank_group.rank
        draft = self._folder / f".{self._named(reached.updates).name}"
        room = None if rank else self._patiently(partial(self._make_room, draft))
        if not self._learner.rank_group.all_gather(room)[0]:
            self._saved_at = time.monotonic()
            return self._saved_at - began
        with Background("writing a state of the cold start", deadline_s=self._wait_s) as writing:
            saved = self._learner.save_part(draft)
            writing.start(saved.result)
        if not rank:
            self._patiently(partial(self._commit, draft, reached, saved.result()))
        self._newest, self._saved_at = reached.updates, time.monotonic()
        self._writing_s = self._saved_at - began
        return self._writing_s

    def _find(self) -> tuple[Reached, tuple[str, ...]]:
        """Returns the position of the newest state that can be used, and lines for the user."""
        self._digest, lines = digest_of(self._learner.config, self._order), list[str]()
        for updates in reversed(state_steps(self._folder)):
            folder = self._named(updates)
            try:
                meta = _read(folder)
                if meta.order != self._digest:
                    lines.append(f"the state in {folder} is of another model, other rows or other settings; it is not "
                                 "used")
                    continue
                check_facts(folder, meta.files)
            except Damaged as error:
                lines.append(f"warning: the state in {folder} is damaged and is not used: {error.what}")
                continue
            return meta.reached, (*lines, f"the cold start continues after update {updates}")
        return Reached(), (*lines, *["the cold start begins from the start"] * bool(lines))

    def _make_room(self, draft: Path) -> bool:
        """Removes all but the newest state, and creates the folder of the next. Returns whether the disk has room."""
        for old in (*self._folder.glob(".state-*"), *map(self._named, state_steps(self._folder))):
            if old != self._named(self._newest):
                shutil.rmtree(old)
        needed = 4 * self._learner.shape.parameters + sum(
            12 * weight.numel() for weight in self._learner.policy.parameters() if weight.requires_grad)
        free = shutil.disk_usage(self._folder).free
        if free < needed:
            if not self._reported_full:
                line = (f"warning: {self._folder} has {free / GIB:.1f} GiB free, and a state of the cold start and its "
                        f"model may take {needed / GIB:.1f}: it continues without a new state")
                self._reported_full, self._begun = True, (time.time(), (line,))
            return False
        draft.mkdir()
        return True

    def _commit(self, draft: Path, reached: Reached, saved: Mapping[str, str]) -> None:
        """Renames a draft once it is durable. `saved`: file name -> digest. After an OSError it can be called again."""
        final = self._named(reached.updates)
        if draft.exists():
            meta = {"order": self._digest, "files": facts_of(draft, saved), **asdict(reached)}
            (draft / META).write_bytes(msgspec.json.encode(meta))
            sync_tree(draft)
            draft.rename(final)
        sync(self._folder)

    def _named(self, updates: int) -> Path:
        return self._folder / f"state-{updates:08d}"

    def _patiently(self, call: Callable[[], T]) -> T:
        return retry_files(call, seconds=self._wait_s, what=f"{self._folder} could not be used")


def folder_of(out: Path) -> Path:
    """Returns the folder of the states of a cold start with the model `out`. It is hidden, so no mirror copies it."""
    return out.absolute().with_name(f".{out.name}.ranks")


def state_steps(folder: Path) -> list[int]:
    """Returns the updates of all states in the folder, oldest first."""
    matches = (_FOLDER.fullmatch(path.name) for path in folder.glob("state-*"))
    return sorted(int(match[1]) for match in matches if match)


def _read(folder: Path) -> _Meta:
    try:
        return read_json(folder / META, _Meta)
    except FileNotFoundError:  # another OSError may mean that the storage is unavailable
        raise Damaged(f"{folder / META} does not exist", "restore it") from None


def _number(value: float | None) -> float:
    return math.nan if value is None else value
