"""GPUs that are not there, for each process with this folder on its PYTHONPATH: Python imports this file at its start.

Ray counts the GPUs that it is told of, and gives each worker and rank its GPU in CUDA_VISIBLE_DEVICES. All of the
product runs as on a GPU, with two stand-ins: engines and ranks compute on the CPU, and the memory of a GPU is a lock
on a file below $PRETENDED_GPUS. A sampler that is awake or a learner with its states on it fills the GPU, which
fits one of them: who comes second runs out of memory. As on a GPU, the end of a process frees what it held.

While there is a file `hold` beside the GPUs, ranks whose states have come back to their GPUs compute for ever. Each
makes a file there, named by what is in `hold` and by its GPU.
"""

from __future__ import annotations

import fcntl
import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

HOLD = "hold"
_held: list[int] = []


def _fill() -> None:
    """Fills the GPU. A fork of this process, vLLM's EngineCore, holds the memory too."""
    memory = Path(os.environ["PRETENDED_GPUS"], f"gpu-{os.environ['CUDA_VISIBLE_DEVICES']}")
    descriptor = os.open(memory, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RuntimeError(f"CUDA out of memory: {memory.name} is full") from None
    _held.append(descriptor)


def _free() -> None:
    fcntl.flock(_held[0], fcntl.LOCK_UN)  # also for the fork
    os.close(_held.pop())


def _fill_and_compute() -> None:
    _fill()
    hold = Path(os.environ["PRETENDED_GPUS"], HOLD)
    with suppress(FileNotFoundError):
        hold.with_name(f"{hold.read_text()}-{os.environ['CUDA_VISIBLE_DEVICES']}").touch()
    while hold.exists():
        time.sleep(0.05)


def _around(cls: type, name: str, *, before: Callable[[], None] | None = None, after: Callable[[], None] | None = None,
            ) -> None:
    method = getattr(cls, name)

    @functools.wraps(method)
    def changed(*arguments: Any, **named: Any) -> Any:
        if before:
            before()
        result = method(*arguments, **named)
        if after:
            after()
        return result

    setattr(cls, name, changed)


def _sample_on_cpus(settings: Any) -> None:
    settings.device_of = lambda _: "cpu"


def _train_on_cpus(ranks: Any) -> None:
    made = ranks.RankGroup.__init__

    def on_cpu(self: Any, *arguments: Any, gpu: bool, **others: Any) -> None:
        made(self, *arguments, gpu=False, **others)

    ranks.RankGroup.__init__ = on_cpu


def _sampler_fills(module: Any) -> None:
    """vLLM's worker on a CPU does nothing in these two methods."""
    _around(module.CPUWorker, "init_device", before=_fill)
    _around(module.CPUWorker, "sleep", after=_free)
    _around(module.CPUWorker, "wake_up", before=_fill)


def _learner_fills(module: Any) -> None:
    _around(module.Learner, "__init__", before=_fill)


def _offload_frees(module: Any) -> None:
    _around(module.HostOffload, "offload", after=_free)
    _around(module.HostOffload, "onload", before=_fill_and_compute)


STAND_INS: dict[str, Callable[[Any], None]] = {
    "rollout.engine.settings": _sample_on_cpus, "learner.rank_group": _train_on_cpus,
    "vllm.v1.worker.cpu_worker": _sampler_fills, "learner.trainer": _learner_fills,
    "learner.model.host_memory": _offload_frees}


class _Finder(MetaPathFinder):
    """Changes each of these modules right after it has been executed."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None,
                  ) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, path) if fullname in STAND_INS else None
        if found is not None and found.loader is not None:
            execute = found.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                STAND_INS[fullname](module)

            found.loader.exec_module = exec_module  # type: ignore[method-assign]
        return found


sys.meta_path.insert(0, _Finder())
