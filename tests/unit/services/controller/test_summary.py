"""The row that an evaluation writes."""

from dataclasses import replace

import numpy as np
import pytest

from services.config.env import EnvSection
from services.controller.evaluation import summarise
from services.controller.tickets import EvalRequest
from services.records import Episode, Step, Version

REQUEST = EvalRequest(label="step-1", version=Version(incarnation=1, step=1), split="test", tasks=("shop/a", "shop/b"),
                      temperature=0.4, samples=2, seed=0, env=EnvSection(max_steps=3))


def summary(scores, won=(True, False, False, False), rules=({}, {}, {}, {})):
    tickets = [ticket for group in REQUEST.tickets() for ticket in group]
    episodes = [Episode(ticket=ticket, steps=[], won=w, end="won" if w else "lost", worker="w", attempt=1, seconds=1.0,
                        engine="e", task_score=score, rule_scores=by_rule)
                for ticket, score, w, by_rule in zip(tickets, scores, won, rules, strict=True)]
    return summarise(REQUEST, episodes, dropped=0, task_type=lambda task: task[-1])


def test_the_environments_own_score_is_averaged_over_episodes():
    assert summary([1.0, 0.5, 0.25, 0.0])["task_score"] == pytest.approx(0.4375)


def test_the_score_by_each_rule_is_averaged_with_episodes_that_were_cut_off():
    """Two purchases, and two episodes that bought nothing: they have a score of 0 by every rule."""
    bought = [{"original": 1.0, "strict": 0.5}, {"original": 1.0, "strict": 1.0}, {}, {}]
    line = summary([1.0, 1.0, 0.0, 0.0], rules=bought)
    assert line["score_by_rule"] == {"original": 0.5, "strict": 0.375}
    assert line["full_score_by_rule"] == {"original": 0.5, "strict": 0.25}
    assert "score_by_rule" not in summary([1.0, 1.0, 0.0, 0.0]), "this environment has one rule"


def test_success_is_a_mean_over_tasks_of_means_over_samples():
    line = summary([None] * 4)
    assert line["task_score"] is None, "this environment has no score"
    assert line["success_by_task"] == {"shop/a": 0.5, "shop/b": 0.0}
    assert line["success_by_type"] == {"a": 0.5, "b": 0.0}
    assert (line["success_rate"], line["tasks"], line["episodes"]) == (0.25, 2, 4)


def test_repeats_tell_the_best_of_two_by_task():
    """pass@2 is 1 in the first game and 0 in the other. Of two games a resample has the mean 0, 1/2 or 1 of the way."""
    line = summary([1.0, 0.5, 0.25, 0.0])
    assert (line["pass_at"], line["pass_at_low"], line["pass_at_high"]) == ({"2": 0.5}, {"2": 0.0}, {"2": 1.0})
    assert (line["best_score"], line["best_score_low"], line["best_score_high"]) == (
        {"2": 0.625}, {"2": 0.25}, {"2": 1.0})


@pytest.mark.parametrize("scores", [[None] * 4, [1.0, 1.0, None, None], [1.0, None, 0.0, 0.0]])
def test_the_best_score_needs_a_score_of_every_episode(scores):
    line = summary(scores)
    assert "best_score" not in line
    assert line["pass_at"] == {"2": 0.5}


def test_of_eight_episodes_a_game_the_best_of_two_four_and_eight_are_told():
    """One win of eight, in one game: pass@k = k / 8. All games are equal, so p = 1 - 0.025 of them may be otherwise."""
    request = replace(REQUEST, tasks=("shop/a",), samples=8)
    tickets = [ticket for group in request.tickets() for ticket in group]
    episodes = [Episode(ticket=ticket, steps=[], won=not ticket.k, end="won", worker="w", attempt=1, seconds=1.0,
                        engine="e") for ticket in tickets]
    line = summarise(request, episodes, dropped=0, task_type=str)
    assert line["pass_at"] == {"2": 0.25, "4": 0.5, "8": 1.0}
    assert line["pass_at_low"]["4"] == pytest.approx(0.5 - 0.975 * 0.5)
    alone = replace(request, samples=1)
    assert "pass_at" not in summarise(alone, episodes[:1], dropped=0, task_type=str)


def test_answers_without_form_and_actions_that_are_not_admissible_are_shares_of_the_turns():
    none = np.zeros(0, np.int32)
    steps = [Step(observation="", prompt_ids=none, response_ids=none, logprobs=none.astype(np.float32), spans=[],
                  action="", valid=valid, admissible=admissible, reward=0.0, cut=not valid)
             for valid, admissible in ((False, False), (True, False), (True, False), (True, True))]
    (ticket, *_), *_ = REQUEST.tickets()
    episode = Episode(ticket=ticket, steps=steps, won=False, end="lost", worker="w", attempt=1, seconds=1.0, engine="e")
    line = summarise(REQUEST, [episode], dropped=0, task_type=str)
    assert (line["invalid_share"], line["inadmissible_share"], line["episode_length"]) == (0.25, 0.75, 4)
    assert line["cut_share"] == 0.25
