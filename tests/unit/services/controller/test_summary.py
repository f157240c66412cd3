"""The row that an evaluation writes."""

import pytest

from services.controller.evaluation import summarise
from services.controller.tickets import EvalRequest
from services.records import Episode, Version

REQUEST = EvalRequest(label="step-1", version=Version(incarnation=1, step=1), split="test", tasks=("shop/a", "shop/b"),
                      temperature=0.4, samples=2, seed=0, max_steps=3)


def summary(scores, won=(True, False, False, False)):
    tickets = [ticket for group in REQUEST.tickets() for ticket in group]
    episodes = [Episode(ticket=ticket, steps=[], won=w, end="won" if w else "lost", worker="w", attempt=1, seconds=1.0,
                        engine="e", task_score=score)
                for ticket, score, w in zip(tickets, scores, won, strict=True)]
    return summarise(REQUEST, episodes, dropped=0, task_type=lambda task: task[-1])


def test_the_environments_own_score_is_averaged_over_episodes():
    assert summary([1.0, 0.5, 0.25, 0.0])["task_score"] == pytest.approx(0.4375)


def test_an_environment_without_a_score_has_none():
    assert summary([None] * 4)["task_score"] is None


def test_success_is_a_mean_over_tasks_of_means_over_samples():
    line = summary([None] * 4)
    assert line["success_by_task"] == {"shop/a": 0.5, "shop/b": 0.0}
    assert line["success_by_type"] == {"a": 0.5, "b": 0.0}
    assert (line["success_rate"], line["tasks"], line["episodes"]) == (0.25, 2, 4)
