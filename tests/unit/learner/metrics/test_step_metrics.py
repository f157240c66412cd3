"""The row of a learner step, by hand."""

import numpy as np

from learner.metrics.observer import metrics_row
from services.records import Episode, Manifest, Step, Ticket, Version, VersionSpan
from services.telemetry.metrics_file import METRIC_TEXTS

VERSION = Version(incarnation=1, step=2)


def step(prompt: int, response: int, *, cut: bool = False) -> Step:
    return Step(observation="", prompt_ids=np.zeros(prompt, np.int32), response_ids=np.zeros(response, np.int32),
                logprobs=np.zeros(response, np.float32), spans=[VersionSpan(version=VERSION, start=0, end=response)],
                action="go", valid=not cut, admissible=True, reward=0.0, cut=cut)


def episode(k: int, *steps: Step) -> Episode:
    ticket = Ticket(group="train/00000001", k=k, size=2, task="t", seed=1, kind="train", temperature=1.0, max_steps=4)
    return Episode(ticket=ticket, steps=list(steps), won=k == 0, end="turns", worker="w", attempt=1, seconds=1.0,
                   engine="e")


def test_tokens_of_a_turn_and_cut_answers_are_over_the_turns_trained_on():
    group = [episode(0, step(10, 4), step(16, 8, cut=True)), episode(1, step(10, 2), step(12, 6))]
    row = metrics_row(VERSION, Manifest(step=3, incarnation=1, groups=["train/00000001"], drops=[]), [group],
                      {}, {})
    assert (row["cut_share"], row["invalid_share"]) == (0.25, 0.25)
    assert (row["prompt_tokens_mean"], row["prompt_tokens_max"]) == (12, 16)
    assert (row["response_tokens_mean"], row["response_tokens_max"]) == (5, 8)
    assert set(row) <= set(METRIC_TEXTS)
