"""States of a cold start on the learner's ranks, from which it goes on when a rank, its node, Ray or the driver dies.

`state-00001200/` is the learner's checkpoint after 1200 updates, with `meta.json`: how far the training was, to which
order the state belongs, and the digests of all files. It is durable before it has its name. At most two states, one of
them a draft, are on disk.
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
from services.config.tree import Config
from services.files import Damaged, read_json, sync, sync_tree
from services.patience import while_folder_away
from services.units import GIB

if TYPE_CHECKING:
    from learner.trainer import Learner

FORMAT = 1
LEAST_S = 60.0
"""Seconds of training before a state, at least."""
COST = 1 / 20
"""Share of the time that writing states may take."""
T = TypeVar("T")
_FOLDER = re.compile(r"state-(\d{8,})")


def is_due(trained_s: float, took_s: float) -> bool:
    """Whether a state should be written after so many seconds of training. `took_s`: time that writing one takes."""
    return trained_s >= max(LEAST_S, took_s / COST)


def digest_of(config: Config, order: Order) -> str:
    """Returns a digest of all that decides the weights of each update: a state goes on only where it is the same.

    How rows are packed, over how many ranks they are split and where moments lie may change.
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

    Rank 0 alone reads and writes what is no tensor, and decides.
    """

    def __init__(self, learner: Learner, order: Order) -> None:
        self._learner, self._order, self._folder = learner, order, order.work
        self._digest = ""
        self._wait_s = learner.config.learner.collective_s
        self._since, self._took = time.monotonic(), 0.0
        self._newest = 0
        self._begun: tuple[float, tuple[str, ...]] | None = None
        self._short = False

    def facts(self) -> dict[str, Any]:
        """Returns the number of updates of the newest whole state (`kept`), and what `load` found (`begun`, None before
        it): its time, by which two lives differ, and lines for the user. A lack of room is told likewise."""
        return {"kept": self._newest, "begun": self._begun}

    def load(self) -> Reached:
        """Loads the newest state of this order that is whole. Returns how far it is, Reached() without one."""
        rank_group = self._learner.rank_group
        state = None if rank_group.rank else self._patiently(self._find)
        reached, lines = rank_group.all_gather(state)[0]
        if reached.updates:
            self._learner.load_part(self._named(reached.updates))
        self._newest, self._begun, self._since = reached.updates, (time.time(), lines), time.monotonic()
        return reached

    def due(self) -> bool:
        """Whether it is time to write a state, by the clock of this rank."""
        return is_due(time.monotonic() - self._since, self._took)

    def save(self, reached: Reached) -> float:
        """Writes a state, if the disk has room for it and for the model. Returns the seconds that it took on this
        rank."""
        began, rank = time.monotonic(), self._learner.rank_group.rank
        draft = self._folder / f".{self._named(reached.updates).name}"
        room = None if rank else self._patiently(partial(self._make_room, draft))
        if not self._learner.rank_group.all_gather(room)[0]:
            self._since = time.monotonic()
            return self._since - began
        with Background("writing a state of the cold start", deadline_s=self._wait_s) as writing:
            saved = self._learner.save_part(draft)
            writing.start(saved.result)
        if not rank:
            self._patiently(partial(self._commit, draft, reached, saved.result()))
        self._newest, self._since = reached.updates, time.monotonic()
        self._took = self._since - began
        return self._took

    def _find(self) -> tuple[Reached, tuple[str, ...]]:
        """Returns how far the newest state that can be used is, and lines that say what was found."""
        self._digest, lines = digest_of(self._learner.config, self._order), list[str]()
        for updates in reversed(kept(self._folder)):
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
            return meta.reached, (*lines, f"the cold start goes on after update {updates}")
        return Reached(), (*lines, *["the cold start begins at its beginning"] * bool(lines))

    def _make_room(self, draft: Path) -> bool:
        """Removes all but the newest state, and makes the folder of the next. Returns False if it has no room."""
        for old in (*self._folder.glob(".state-*"), *map(self._named, kept(self._folder))):
            if old != self._named(self._newest):
                shutil.rmtree(old)
        needed = 4 * self._learner.shape.parameters + sum(
            12 * weight.numel() for weight in self._learner.policy.parameters() if weight.requires_grad)
        free = shutil.disk_usage(self._folder).free
        if free < needed:
            self._tell_once(f"warning: {self._folder} has {free / GIB:.1f} GiB free, and a state of the cold start and "
                            f"its model may take {needed / GIB:.1f}: it goes on without a new state")
            return False
        draft.mkdir()
        return True

    def _tell_once(self, line: str) -> None:
        if not self._short:
            self._short, self._begun = True, (time.time(), (line,))

    def _commit(self, draft: Path, reached: Reached, saved: Mapping[str, str]) -> None:
        """Gives a draft its name once it is durable. `saved`: file name -> digest. Raises OSError, and can then be
        called again."""
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
        return while_folder_away(call, seconds=self._wait_s, what=f"{self._folder} could not be used")


def folder_of(out: Path) -> Path:
    """Returns the folder of the states of a cold start whose model goes to `out`. It is hidden, so no mirror copies
    it."""
    return out.absolute().with_name(f".{out.name}.ranks")


def kept(folder: Path) -> list[int]:
    """Returns the updates of all states in the folder, oldest first."""
    matches = (_FOLDER.fullmatch(path.name) for path in folder.glob("state-*"))
    return sorted(int(match[1]) for match in matches if match)


def _read(folder: Path) -> _Meta:
    try:
        return read_json(folder / META, _Meta)
    except FileNotFoundError:  # another OSError says nothing about the state: a shared folder may be away
        raise Damaged(f"{folder / META} is not there", "restore it") from None


def _number(value: float | None) -> float:
    return math.nan if value is None else value
