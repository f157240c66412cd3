"""Makes the row of a learner step in metrics.jsonl, from its groups and from what the learner measured."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from learner.collect import UNIFORM
from learner.rows.judge import judge_metrics
from services.records import Episode, Manifest, Tally, Version


def metrics_row(version: Version | None, manifest: Manifest, groups: Sequence[Sequence[Episode]],
                measured: Mapping[str, float], seconds: Mapping[str, float]) -> dict[str, Any]:
    """Returns a row with all keys of services.telemetry.metrics_file.METRIC_KEYS.

    `version`: published after the step. `measured`: the learner's metrics. `seconds`: the time of each phase of the
    loop. All but the figures of _played are over the groups trained on: shares over their turns, ages in learner steps
    at consumption.
    """
    episodes = [episode for group in groups for episode in group]
    steps = [step for episode in episodes for step in episode.steps]
    ages = [manifest.step - 1 - episode.oldest_step for episode in episodes]
    return {
        "step": manifest.step,
        "version": version.short if version is not None else "",
        "time": time.time(),
        **_played(episodes, manifest),
        "invalid_share": fmean(not step.valid for step in steps),
        "inadmissible_share": fmean(not step.admissible for step in steps),
        "cut_share": fmean(step.cut for step in steps),
        **_lengths("prompt", [len(step.prompt_ids) for step in steps]),
        **_lengths("response", [len(step.response_ids) for step in steps]),
        "prefix_breaks": sum(step.broke for step in steps),
        "staleness_mean": fmean(ages),
        "staleness_max": max(ages),
        "dropped_groups": sum(drop.group.startswith("train/") for drop in manifest.drops),
        "reissued_episodes": sum(episode.attempt > 1 for episode in episodes),
        "replays": sum(episode.replays for episode in episodes),
        **judge_metrics(episodes),
        **{f"seconds/{phase}": value for phase, value in seconds.items()},
        **measured,
    }


def _lengths(part: str, tokens: Sequence[int]) -> dict[str, float]:
    return {f"{part}_tokens_mean": fmean(tokens), f"{part}_tokens_max": max(tokens)}


def _played(episodes: Sequence[Episode], manifest: Manifest) -> dict[str, float]:
    """Returns the means and sums over the episodes trained on and those that dynamic sampling replaced.

    Replaced groups are mostly won or lost as a whole. Without them the success would be that of the other games alone.
    tokens_sampled counts judgements too. task_score is not a number if the environment has no score.
    """
    parts = [Tally.of(episodes), *(drop for drop in manifest.drops if drop.reason.startswith(UNIFORM))]
    number, steps = sum(part.episodes for part in parts), sum(part.steps for part in parts)
    scored = sum(part.scored for part in parts)
    return {
        "success_rate": sum(part.wins for part in parts) / number,
        "episode_return": math.fsum(part.reward for part in parts) / number,
        "task_score": math.fsum(part.score for part in parts) / scored if scored else math.nan,
        "episode_length": steps / number,
        "episodes": number,
        "env_steps": steps,
        "tokens_sampled": sum(part.tokens for part in parts),
    }
