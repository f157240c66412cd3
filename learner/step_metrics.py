"""Makes the row of a learner step in metrics.jsonl, from its groups and from what the learner measured."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from learner.judge import judge_metrics
from services.records import Episode, Manifest, Version


def metrics_row(version: Version | None, manifest: Manifest, groups: Sequence[Sequence[Episode]],
                measured: Mapping[str, float], seconds: Mapping[str, float]) -> dict[str, Any]:
    """Returns a row with all keys of services.telemetry.metrics_file.METRIC_KEYS.

    `version`: published after the step. `measured`: the learner's metrics. `seconds`: the time of each phase of the
    loop. Shares are over turns, and tokens_sampled counts judgements too. Ages are in learner steps at consumption.
    task_score is not a number if the environment has no score.
    """
    episodes = [episode for group in groups for episode in group]
    steps = [step for episode in episodes for step in episode.steps]
    judged = [answer for episode in episodes for question in episode.judged for answer in question.answers]
    scores = [episode.task_score for episode in episodes if episode.task_score is not None]
    ages = [manifest.step - 1 - episode.oldest_step for episode in episodes]
    return {
        "step": manifest.step,
        "version": version.short if version is not None else "",
        "time": time.time(),
        "success_rate": fmean(episode.won for episode in episodes),
        "episode_return": fmean(episode.total_reward for episode in episodes),
        "task_score": fmean(scores) if scores else math.nan,
        "episode_length": fmean(len(episode.steps) for episode in episodes),
        "invalid_share": fmean(not step.valid for step in steps),
        "inadmissible_share": fmean(not step.admissible for step in steps),
        "episodes": len(episodes),
        "env_steps": len(steps),
        "tokens_sampled": sum(len(step.response_ids) for step in (*steps, *judged)),
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
