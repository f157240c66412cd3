"""Episodes on disk, one row per step, for the explorer, pandas and duckdb: `step-00000012.parquet`.

A thread writes, so that a learner step never waits for the disk. Call flush() before the store retires episodes.
"""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from services.amounts import number_of
from services.errors import DeadlineExceeded, StoreFault
from services.files import sync
from services.outages import retry, retry_files
from services.records import Drop, Episode, Step, verdict_of
from services.telemetry.logs import get_logger

FORMAT = 7
"""Version of the columns, in the metadata of each file under `format`."""
FILE_NAME = re.compile(r"step-(\d{8,})(?:-(.+))?\.parquet")
"""Matches the name of an archive file: the learner step, and the part if there is one. A run's learner writes the
episodes that a step trained on without a part."""
Outcome = Literal["trained", "dropped", "evaluated"]
CREDIT = ("advantage", "value", "return", "delta", "raw_advantage", "baseline")
"""Numbers from the learner, explained in learner/credit/types.py. They are null for episodes that were not trained on,
and if the estimator does not compute them."""
LEARNER = (*CREDIT, "state_key", "learner_logprobs")
"""All columns of the learner. learner_logprobs [R] are recomputed before the update, for the tokens of `logprobs`."""
ROW_GROUP = 512
"""Fewest rows of a parquet row group, except for a file's last one. It holds entire groups of episodes, so reading one
group reads few others."""
log = get_logger("archive")
_QUEUE = 8
"""Most files that wait for the disk. Once there are so many, training waits: a slow disk must not fill the memory."""


def file_name(step: int, part: str = "") -> str:
    """Returns the name of an archive file, such as `step-00000012.parquet`, which FILE_NAME matches."""
    return f"step-{step:08d}{'-' + part if part else ''}.parquet"


def evaluation_part(label: str, temperature: float) -> str:
    """Returns the part in which an evaluation keeps its episodes."""
    return f"{label}-T{temperature:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRow:
    """One episode and its use: trained, evaluated or dropped."""

    episode: Episode
    outcome: Outcome
    reason: str = ""
    """Why it was dropped."""
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values of LEARNER columns, one for each step."""


class EpisodeArchive:
    """Writes parquet files into one folder. Close it, or use it as a context manager.

    If the disk is full or unavailable, each call waits for it for up to `deadline_s` seconds.
    """

    def __init__(self, folder: Path, *, deadline_s: float = 60.0) -> None:
        retry_files(partial(folder.mkdir, exist_ok=True), seconds=deadline_s, what=f"{folder} could not be made")
        self._folder = folder
        self._deadline_s = deadline_s
        self._trouble = ""
        self._jobs: queue.Queue[tuple[Path, list[ArchiveRow]] | None] = queue.Queue(_QUEUE)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="episode-archive", daemon=True)
        self._thread.start()

    def write(self, step: int, rows: Sequence[ArchiveRow], *, part: str = "") -> None:
        """Queues the file of a step. It replaces a file of the same step and part, which a replayed step writes again.

        `part` separates writers: with "eval" the file is `step-00000012-eval.parquet`.
        Raises StoreFault if an earlier file failed, DeadlineExceeded if the queue stays full.
        """
        for row in rows:
            _check(row)
        self._raise_error()
        try:
            self._jobs.put((self._folder / file_name(step, part), list(rows)), timeout=self._deadline_s)
        except queue.Full:
            raise self._late(_QUEUE) from None

    def write_dropped(self, dropped: Mapping[Drop, Sequence[Episode]]) -> None:
        """Writes the finished episodes of groups that are dropped at once into one file, durable when this returns.

        The file is named by the first of these groups and by the version that its tickets asked for, so a repeated call
        replaces it. Call it before the store forgets the groups. Raises as `write` and `flush` do.
        """
        rows = [ArchiveRow(episode=episode, outcome="dropped", reason=drop.reason)
                for drop, episodes in dropped.items() for episode in episodes]
        if not rows:
            return
        ticket = rows[0].episode.ticket
        step = ticket.exact_version.step if ticket.exact_version else ticket.min_step
        self.write(step, rows, part=f"dropped-{ticket.group.replace('/', '-')}")
        self.flush()

    def flush(self) -> None:
        """Waits until all queued files are durable. Raises StoreFault or DeadlineExceeded."""
        deadline = time.monotonic() + self._deadline_s
        with self._jobs.all_tasks_done:
            while self._jobs.unfinished_tasks:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._late(self._jobs.unfinished_tasks)
                self._jobs.all_tasks_done.wait(left)
        self._raise_error()

    def close(self) -> None:
        """Flushes and ends the thread."""
        self.flush()
        self._jobs.put(None, timeout=self._deadline_s)
        self._thread.join(self._deadline_s)

    def __enter__(self) -> EpisodeArchive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise StoreFault(f"the episode archive could not write: {self._error}") from self._error

    def _late(self, files: int) -> DeadlineExceeded:
        return DeadlineExceeded(f"the episode archive has not written {number_of(files, 'file')} in "
                                f"{self._deadline_s:g} s ({self._trouble or 'the disk is slow'}; learner.collective_s)")

    def _warn(self, error: Exception) -> None:
        self._trouble = str(error)
        log.warning("the episode archive cannot write; waiting for the disk", reason=str(error))

    def _run(self) -> None:
        """Writes queued files. Keeps an error for the caller's thread, in which write and flush raise it."""
        while (job := self._jobs.get()) is not None:
            try:
                if self._error is None:
                    retry(partial(_write, *job), seconds=self._deadline_s, report=self._warn,
                          temporary=lambda error: isinstance(error, OSError))
                    self._trouble = ""
            except Exception as error:
                self._error = error
            finally:
                self._jobs.task_done()


def _check(row: ArchiveRow) -> None:
    unknown = set(row.columns) - set(LEARNER)
    if unknown:
        raise ValueError(f"the archive has no column {sorted(unknown)[0]!r}")
    for name, values in row.columns.items():
        if len(values) != len(row.episode.steps):
            raise ValueError(f"{name}: {len(values)} values for {len(row.episode.steps)} steps")


def _line(row: ArchiveRow, t: int, step: Step) -> dict[str, Any]:
    episode, ticket = row.episode, row.episode.ticket
    judged = next((question for question in episode.judged if question.turn == t), None)
    return {
        "group": ticket.group, "k": ticket.k, "task": ticket.task,
        "task_type": ticket.task_type or None, "kind": ticket.kind,
        "temperature": ticket.temperature, "outcome": row.outcome, "reason": row.reason,
        "won": episode.won, "end": episode.end, "worker": episode.worker, "attempt": episode.attempt, "step": t,
        "observation": step.observation, "action": step.action, "valid": step.valid, "admissible": step.admissible,
        "reward": step.reward, "prompt_tokens": len(step.prompt_ids), "prompt_ids": step.prompt_ids,
        "tokens": step.response_ids, "logprobs": step.logprobs,
        "final_observation": episode.final_observation if t == len(episode.steps) - 1 else None,
        "choices": step.choices, "state": step.state, "unchanged": step.unchanged, "tag": step.tag,
        "judged": None if judged is None else verdict_of(judged.good),
        "verdicts": None if judged is None else [answer.action for answer in judged.answers],
        "cut": step.cut, "version": ",".join(dict.fromkeys(span.version.short for span in step.spans)),
        **{name: row.columns[name][t] if name in row.columns else None for name in LEARNER},
    }


_COLUMNS = {
    "group": "string", "k": "int32", "task": "string", "task_type": "string", "kind": "string",
    "temperature": "double", "outcome": "string",
    "reason": "string", "won": "bool", "end": "string", "worker": "string", "attempt": "int32",
    "step": "int32", "observation": "string", "action": "string", "valid": "bool", "admissible": "bool",
    "reward": "double", "prompt_tokens": "int32", "tokens": "int32[]", "logprobs": "float[]", "version": "string",
    **dict.fromkeys(CREDIT, "double"), "state_key": "string",
    "prompt_ids": "int32[]", "learner_logprobs": "float[]", "final_observation": "string",
    "choices": "string", "state": "string", "unchanged": "bool", "tag": "string",
    "judged": "string", "verdicts": "string[]", "cut": "bool",
}
"""Arrow's names of the types; [] for a list. `version` lists the short versions that sampled the step's tokens;
final_observation is what the episode's last action led to, in its last row; judged is the label of an action that the
policy was asked about, and verdicts what its answers said."""
_REPEATING = [name for name, kind in _COLUMNS.items() if kind == "string"]
"""Columns that are written with a dictionary. Token columns are not: prompts share long sequences, which zstd finds in
plain numbers, but not in packed dictionary indices."""


def _row_groups(groups: Sequence[str]) -> list[tuple[int, int]]:
    """Returns ranges of rows that end at the end of a group, each as short as possible with at least ROW_GROUP rows,
    but for the last one."""
    ends = [i for i in range(1, len(groups) + 1) if i == len(groups) or groups[i] != groups[i - 1]]
    bounds: list[tuple[int, int]] = []
    start = 0
    for end in ends:
        if end - start >= ROW_GROUP or end == len(groups):
            bounds.append((start, end))
            start = end
    return bounds


def _schema() -> Any:
    import pyarrow as pa

    def arrow(name: str) -> Any:
        item = pa.type_for_alias(name.removesuffix("[]"))
        return pa.list_(item) if name.endswith("[]") else item

    return pa.schema([(name, arrow(kind)) for name, kind in _COLUMNS.items()], metadata={"format": str(FORMAT)})


def _write(path: Path, rows: Sequence[ArchiveRow]) -> None:
    """Writes a file that is durable before it is visible: temporary file, fsync, rename, fsync of the folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = [_line(row, t, step) for row in rows for t, step in enumerate(row.episode.steps)]
    table = pa.Table.from_pylist(lines, schema=_schema())
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        names: Any = _REPEATING  # the stubs know only True and False
        with pq.ParquetWriter(file, table.schema, compression="zstd", use_dictionary=names) as writer:
            for start, end in _row_groups([line["group"] for line in lines]):
                writer.write_table(table.slice(start, end - start), row_group_size=end - start)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)
