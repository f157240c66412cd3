"""Heartbeats of processes with known counts."""

from services.telemetry.heartbeat import Beat

TOKENS = "gagpo_rollout_tokens_total"


def worker(at: float, tokens: float) -> Beat:
    """Returns the heartbeat of a rollout worker at `at` that has sampled so many tokens."""
    return Beat(role="rollout", version="1.3", doing="playing", since=at, progress=at, at=at,
                metrics={TOKENS: [(TOKENS, {"kind": "prompt"}, 9.0), (TOKENS, {"kind": "response"}, tokens)]})


def learner(steps: float) -> Beat:
    """Returns the heartbeat of a learner after so many steps and 30 seconds of work."""
    phase = "gagpo_learner_phase_seconds_total"
    return Beat(role="learner", version="1.3", doing="waits for groups", since=1.0, progress=1.0, at=1.0, metrics={
        "gagpo_learner_steps_total": [("gagpo_learner_steps_total", {}, steps)],
        phase: [(phase, {"phase": "wait"}, 12.0), (phase, {"phase": "credit"}, 18.0)]})
