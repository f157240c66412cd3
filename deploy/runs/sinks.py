"""A run's figures in TensorBoard and in Weights & Biases: the rows of metrics.jsonl and evaluations.jsonl, as they are.

Their packages are optional, and imported only where `metrics.sinks` names them.
"""

from __future__ import annotations

import importlib.util
import math
import netrc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from services.config.file import flatten
from services.config.tree import Config
from services.errors import UserError
from services.telemetry.overhead import counted

PROJECT = "gagpo"
"""In W&B; $WANDB_PROJECT goes before it."""
NO_FIGURES = ("format", "step", "time", "tasks", "episodes", "dropped")
OFFLINE = ("offline", "disabled")


class Sink(Protocol):
    """Takes named figures of a learner step."""

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Figures of one row."""
        ...

    def close(self) -> None:
        """After the last one: returns once all is written."""
        ...


class TensorBoard:
    """Event files in the run's folder: `tensorboard --logdir runs`."""

    def __init__(self, _config: Config, folder: Path, _run: str) -> None:
        from tensorboard.summary import DirectoryOutput, Writer

        self._writer = Writer(DirectoryOutput(str(folder / "tensorboard")))

    def write(self, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB:
    """A run of W&B's, which goes on where it stopped; with WANDB_MODE=offline a folder for `wandb sync`."""

    def __init__(self, config: Config, folder: Path, run: str) -> None:
        import wandb  # pyright: ignore[reportMissingImports]  # optional

        self._run = wandb.init(project=os.environ.get("WANDB_PROJECT", PROJECT), id=run, name=config.name,
                               dir=str(folder), config=flatten(config), resume="allow")
        self._run.define_metric("*", step_metric="step")  # its own step would refuse evaluations of earlier ones

    def write(self, figures: Mapping[str, float], step: int) -> None:
        self._run.log({"step": step, **figures})

    def close(self) -> None:
        self._run.finish()


SINKS: dict[str, Callable[[Config, Path, str], Sink]] = {"tensorboard": TensorBoard, "wandb": WandB}
"""Name in `metrics.sinks`, which is the package's too -> what makes one of config, the run's folder and its id."""


def check(config: Config) -> None:
    """Raises UserError for a package that is missing, and for W&B without a login. Imports neither."""
    for name in config.metrics.sinks:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"metrics.sinks has {name}, and the package is not installed", f"pip install {name}")
    if "wandb" in config.metrics.sinks and os.environ.get("WANDB_MODE") not in OFFLINE and not _logged_in():
        raise UserError("metrics.sinks has wandb, and nobody is logged in",
                        "run `wandb login`, or set WANDB_MODE=offline")


def _logged_in() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return any("wandb" in host for host in netrc.netrc().hosts)
    except (OSError, netrc.NetrcParseError):
        return False


class Sinks:
    """All sinks of a run. What W&B or the disk refuses ends the run like any other output that cannot be written."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks

    def step(self, row: Mapping[str, Any]) -> None:
        """A row of metrics.jsonl."""
        self._write(_figures(row), int(row["step"]))

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """A row of evaluations.jsonl, under its split or, of the final table, its label."""
        kind = row["split"] if row["label"].startswith("step-") else row["label"]
        named = _figures(row) | {f"success/{name}": rate for name, rate in row["success_by_type"].items()}
        self._write({f"evaluation/{kind}-T{row['temperature']:g}/{name}": value for name, value in named.items()
                     if name != "temperature"}, int(row["step"]))

    @counted("metrics")
    def _write(self, figures: Mapping[str, float], step: int) -> None:
        for sink in self._sinks:
            sink.write(figures, step)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


@contextmanager
def sinks(config: Config, folder: Path, run: str) -> Iterator[Sinks]:
    """Those that the config names."""
    opened = Sinks([SINKS[name](config, folder, run) for name in config.metrics.sinks])
    try:
        yield opened
    finally:
        opened.close()


def _figures(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row."""
    return {name: float(value) for name, value in row.items()
            if name not in NO_FIGURES and isinstance(value, int | float) and math.isfinite(value)}
