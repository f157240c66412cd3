"""Sends the rows of metrics.jsonl and evaluations.jsonl to TensorBoard and Weights & Biases.

Their packages are optional, and imported only if `metrics.sinks` names them.
"""

from __future__ import annotations

import importlib.util
import io
import math
import netrc
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from services.config.file import flatten
from services.config.tree import Config
from services.errors import UserError
from services.telemetry.evaluations import on_curve
from services.telemetry.logs import get_logger

log = get_logger("run")

PROJECT = "gagpo"
"""The project in W&B, unless $WANDB_PROJECT names one."""
NO_FIGURES = ("format", "step", "time", "tasks", "episodes", "dropped")
OFFLINE = ("offline", "disabled")


class Sink(Protocol):
    """A receiver of metrics and evaluations."""

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """Writes the metrics of one row."""
        ...

    def close(self) -> None:
        """Blocks until all rows are written. Call it once, after the last row."""
        ...


class TensorBoard:
    """Writes an event file in the run's folder: `tensorboard --logdir runs` shows it.

    Rows that a full disk refuses wait in memory for the next call. TensorBoard's own writer cannot do that: its thread
    ends at the first error, and every later row raises this error again.
    """

    def __init__(self, _config: Config, folder: Path, _run: str) -> None:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._path = folder / "tensorboard" / name
        self._waiting = io.BytesIO()
        self._records = RecordWriter(self._waiting)
        self._event = vars(event_pb2)["Event"]  # type checkers do not see it
        self._add(file_version="brain.Event:2")
        self._bytes = 0
        """Bytes of the complete rows in the file. A failed call may leave a part of a row after them."""

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        for name, value in metrics.items():
            self._add(step=step, summary=scalar_pb(name, value))
        self._flush()

    def _add(self, **values: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **values).SerializeToString())

    def _flush(self) -> None:
        rows = self._waiting.getvalue()
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("ab") as file:
            file.truncate(self._bytes)
            file.write(rows)
        self._bytes += len(rows)
        self._waiting.seek(0)
        self._waiting.truncate()

    def close(self) -> None:
        self._flush()


class WandB:
    """Writes to a W&B run, which a resumed run continues. WANDB_MODE=offline writes a folder for `wandb sync`."""

    def __init__(self, config: Config, folder: Path, run: str) -> None:
        import wandb  # pyright: ignore[reportMissingImports]  # optional

        self._run = wandb.init(project=os.environ.get("WANDB_PROJECT", PROJECT), id=run, name=config.name,
                               dir=str(folder), config=flatten(config), resume="allow")
        self._run.define_metric("*", step_metric="step")  # W&B's own step would refuse evaluations of earlier steps

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log({"step": step, **metrics})

    def close(self) -> None:
        self._run.finish()


SINKS: dict[str, Callable[[Config, Path, str], Sink]] = {"tensorboard": TensorBoard, "wandb": WandB}
"""Name in `metrics.sinks` (also the package's name) -> constructor from config, the run's folder and its id."""


def check(config: Config) -> None:
    """Raises UserError for a missing package, and for W&B without a login. Imports neither."""
    for name in config.metrics.sinks:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"metrics.sinks has {name}, and the package is not installed", f"pip install {name}")
    if "wandb" in config.metrics.sinks and os.environ.get("WANDB_MODE") not in OFFLINE and not _logged_in():
        raise UserError("metrics.sinks has wandb, and there is no login",
                        "run `wandb login`, or set WANDB_MODE=offline")


def _logged_in() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return any("wandb" in host for host in netrc.netrc().hosts)
    except (OSError, netrc.NetrcParseError):
        return False


class Sinks:
    """All sinks of a run. If a sink cannot be opened or written, the run continues without it, and the log
    says so. `check` has refused missing packages and a missing login before."""

    def __init__(self, sinks: Mapping[str, Callable[[], Sink]]) -> None:
        self._failed: set[str] = set()
        self._sinks: dict[str, Sink] = {}
        for name, make in sinks.items():
            with self._surviving(name, "cannot be opened; the run continues without it"):
                self._sinks[name] = make()

    def step(self, row: Mapping[str, Any]) -> None:
        """Writes a row of metrics.jsonl."""
        self._write(_numbers(row), int(row["step"]))

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Writes a row of evaluations.jsonl under its split, or under its label if it belongs to the final table."""
        kind = row["split"] if on_curve(row["label"]) else row["label"]
        rates = row["success_by_type"] | (row.get("success_by_env") or {})
        named = _numbers(row) | {f"success/{name}": rate for name, rate in rates.items()}
        self._write({f"evaluation/{kind}-T{row['temperature']:g}/{name}": value for name, value in named.items()
                     if name != "temperature"}, int(row["step"]))

    def _write(self, metrics: Mapping[str, float], step: int) -> None:
        for name, sink in self._sinks.items():
            with self._surviving(name, "cannot be written; the run continues without it until it can"):
                sink.write(metrics, step)

    def close(self) -> None:
        for name, sink in self._sinks.items():
            self._failed.discard(name)
            with self._surviving(name, "lacks the run's last rows"):
                sink.close()

    @contextmanager
    def _surviving(self, name: str, what: str) -> Iterator[None]:
        """Logs an error of a sink once. Any error: these are packages of others, and the run's own files hold the rows.
        """
        try:
            yield
        except Exception as error:
            if name not in self._failed:
                log.warning(f"{name} {what}", reason=str(error))
            self._failed.add(name)


@contextmanager
def sinks(config: Config, folder: Path, run: str) -> Iterator[Sinks]:
    """Opens the sinks that the config names, and closes them when the block ends."""
    opened = Sinks({name: partial(SINKS[name], config, folder, run) for name in config.metrics.sinks})
    try:
        yield opened
    finally:
        opened.close()


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns the finite numbers of a row."""
    return {name: float(value) for name, value in row.items()
            if name not in NO_FIGURES and isinstance(value, int | float) and math.isfinite(value)}
