"""Gold paths: the simulator's own solutions. It finds them with all that it knows of the world, not by reading."""

from __future__ import annotations

from functools import lru_cache

from envservice.scienceworld import installation
from envservice.scienceworld.simulator import SOLVE_S, SOLVER_HEAP_MIB, Simulator
from envservice.scienceworld.tasks import place_of
from envservice.scienceworld.wire import JavaError
from services.errors import EnvFault


@lru_cache(maxsize=8192)
def gold_path(task: str, simplifications: str) -> tuple[str, ...]:
    """The actions that the simulator solves the task with; finding them takes it seconds.

    Raises KeyError for an unknown task, UserError without the simulator or Java, EnvFault where it fails.
    """
    place = place_of(task)
    try:
        solver = _solver()
        solver.load(place.name, place.variation, simplifications, gold=True)
        return tuple(solver.gold_path())
    except JavaError as error:
        _solver.cache_clear()
        raise EnvFault(f"no gold path for {task}: {error}") from error


@lru_cache(maxsize=1)
def _solver() -> Simulator:
    """One for all, with a larger heap than games need."""
    return Simulator(
        installation.find_java(), installation.find_classpath(), heap_mib=SOLVER_HEAP_MIB, call_s=SOLVE_S)
