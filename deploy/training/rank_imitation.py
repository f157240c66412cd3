"""Lets the learner's ranks make a cold start: starts them on Ray, starts them again if one dies, and tells how far they
are. Nothing is kept of ranks that died, so those after them begin at the beginning.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.launch.ray_cluster import ray_cluster
from deploy.members import private_ray
from deploy.members.learner_gang import LearnerGang
from deploy.members.placement import bundle
from deploy.members.private_ray import RayLost
from learner.cold_start.sft import REPORT_SECONDS, Budget, SftProgress
from learner.cold_start.sft_data import PROGRESS, ROWS
from services.config.tree import Config
from services.controller.supervise import Supervisor

LOOK_S = 0.5
"""Seconds between two looks at the ranks."""
Note = Callable[[str], object]


def imitate(config: Config, model: Path, out: Path, *, budget: Budget, seed: int, note: Note,
            tell: Callable[[SftProgress], object]) -> dict[str, Any]:
    """Trains `model` on the rows in out/ROWS, on the ranks of the learner. Then the trained model is in `out`. Returns
    `training` (SftProgress as a dict), `parameters` and `ranks`.

    Uses the Ray that this process is connected to; without one it connects as a run does. Raises UserError, RayLost for
    a Ray of the caller's, and Fault if the ranks cannot start or find no place.
    """
    loaded = sys.modules.get("ray")  # imported before its variables are set, it would know no private cluster
    connected = loaded is not None and loaded.is_initialized()
    while True:
        try:
            if connected:
                return _imitate(config, model, out, budget=budget, seed=seed, note=note, tell=tell)
            with ray_cluster(config, f"gagpo-{uuid.uuid4().hex[:12]}", note):
                return _imitate(config, model, out, budget=budget, seed=seed, note=note, tell=tell)
        except RayLost as lost:
            if connected:
                raise
            note(f"{lost}; the cold start begins again in a new one")


def _imitate(config: Config, model: Path, out: Path, *, budget: Budget, seed: int, note: Note,
             tell: Callable[[SftProgress], object]) -> dict[str, Any]:
    from learner.cold_start.rank_actor import ImitatingActor

    learner = config.learner
    gang = LearnerGang(
        learner.ranks,
        lambda rank, world, options: ImitatingActor.options(**options).remote(
            config_json=config.model_dump_json(), rank=rank, world=world, model_path=str(model.absolute()),
            out=str(out.absolute()), folder=str(config.run_dir.absolute()), budget=budget, seed=seed),
        bundle(cpus=learner.cpus, gpus=learner.gpus, nodes=config.placement.learner), fewest=learner.fewest_ranks)
    with _watched(config, gang, out / PROGRESS, note) as supervisor:
        told = 0.0
        while not supervisor.finished(gang):
            supervisor.check()
            now = _read(out / PROGRESS).get("training")
            if now and now["seconds"] - told >= REPORT_SECONDS:
                told = now["seconds"]
                tell(SftProgress(**now))
            time.sleep(LOOK_S)
    facts = _read(out / PROGRESS)
    for file in (PROGRESS, ROWS):
        (out / file).unlink()
    return facts


@contextmanager
def _watched(config: Config, gang: LearnerGang, progress: Path, note: Note) -> Iterator[Supervisor]:
    """Starts the ranks under a supervisor, and stops them when the block ends."""
    supervisor = Supervisor(note, config.supervision, beats=lambda: _read(progress).get("beats", {}),
                            ground=private_ray.check)
    try:
        supervisor.add(gang)
        yield supervisor
    finally:
        supervisor.stop()


def _read(progress: Path) -> dict[str, Any]:
    """Returns what rank 0 has written, {} before it has written anything."""
    try:
        return json.loads(progress.read_text())
    except FileNotFoundError:
        return {}
