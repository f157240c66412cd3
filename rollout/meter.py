"""What a worker's heartbeat says about it."""

from __future__ import annotations

import time

from rollout.engine import Engine
from services.records import Episode


class Meter:
    """Counts since the worker started, and rates since the previous snapshot."""

    def __init__(self) -> None:
        self.updates = 0
        """Weight updates loaded."""
        self.failed = 0
        """Episodes that a fault ended."""
        self.refused = 0
        """Finished episodes whose ticket somebody else had answered."""
        self.episodes = 0
        self.steps = 0
        self.replays = 0
        self._previous = (time.monotonic(), 0)

    def finished(self, episode: Episode, *, accepted: bool) -> None:
        """Count one episode and what became of it."""
        self.episodes += accepted
        self.refused += not accepted
        self.steps += len(episode.steps)
        self.replays += episode.replays

    def snapshot(self, engine: Engine, *, slots: int, busy: int, held: int) -> dict[str, float]:
        """Numbers only: they become gauges."""
        now, tokens = time.monotonic(), engine.tokens_sampled
        then, before = self._previous
        self._previous = now, tokens
        return {
            "slots": slots, "slots_busy": busy, "tickets_held": held, "tokens_sampled": tokens,
            "tokens_per_second": (tokens - before) / max(now - then, 1e-3), "episodes": self.episodes,
            "episodes_failed": self.failed, "episodes_refused": self.refused, "env_steps": self.steps,
            "replays": self.replays, "weight_updates": self.updates,
            "version_incarnation": engine.version.incarnation, "version_step": engine.version.step,
        }  # fmt: skip
