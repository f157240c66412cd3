"""Simulated runs whose times are worked by hand."""

from __future__ import annotations

import msgspec
import pytest

from lab.simulation.events import Simulation, Totals
from lab.simulation.figures import Figures
from lab.simulation.forecast import forecast, forecast_between, whole_rounds
from services.config.tree import Config

FIGURES = Figures(turns=(3,), turn_alone=1.0, turn_share=0.5, learner_step=2.0, learner_turn=0.5, publish=1.0)
"""Two episodes on one worker: three turns of 1 + 2 · 0.5 = 2 s each. Six turns train for 2 + 6 · 0.5 = 5 s."""


def a_run(**sections: dict[str, object]) -> Config:
    """One group of two episodes per step, one worker with room for both, no evaluation, no checkpoint."""
    base: dict[str, dict[str, object]] = {
        "learner": {"groups_per_step": 1, "group_size": 2}, "rollout": {"slots": 2}, "eval": {"every": 0},
        "checkpoint": {"every": 1000}}
    merged = {key: base.get(key, {}) | sections.get(key, {}) for key in base | sections}
    return Config.model_validate({"name": "a", "steps": 100, **merged})


def times(config: Config, figures: Figures = FIGURES, steps: int = 3) -> list[float]:
    return [total.time for total in Simulation(config=config, figures=figures).run(steps)]


def test_on_policy_a_step_is_sampling_and_training_one_after_the_other():
    assert times(a_run()) == [12.0, 24.0, 36.0]  # 6 s sampled, 5 s trained, 1 s published


def test_stale_by_one_the_worker_plays_while_the_learner_trains():
    """Both groups at first, four episodes on two slots: the first group at 6 s. Then the learner alone is the limit."""
    assert times(a_run(learner={"staleness": 1})) == [12.0, 18.0, 24.0]


def test_half_the_slots_make_two_rounds_of_shorter_turns():
    assert times(a_run(rollout={"slots": 1})) == [15.0, 30.0, 45.0]  # 2 · 3 · 1.5 s


def test_the_first_worker_takes_all_it_has_room_for():
    """So a second one with as much room changes nothing, and one with half of it shares the work."""
    assert times(a_run(rollout={"workers": 2})) == times(a_run())
    assert times(a_run(rollout={"workers": 2, "slots": 1})) == [10.5, 21.0, 31.5]  # 3 · 1.5 s


def test_ranks_share_the_turns_and_not_the_rest():
    assert times(a_run(learner={"ranks": 2})) == [10.5, 21.0, 31.5]  # 2 + 3 / 2 s


def test_weights_hold_up_the_next_step_and_a_checkpoint_only_the_learner():
    """Steps take 1 + 6 + 5 + 1 = 13 s. The checkpoint of the second ends at 29 s, and the next groups at 33 s."""
    figures = msgspec.structs.replace(FIGURES, checkpoint=3.0, update=1.0)
    assert times(a_run(checkpoint={"every": 2}), figures, 4) == [13.0, 29.0, 39.0, 55.0]


def test_a_publication_waits_for_the_evaluation_of_the_version_before():
    """Version 0 is evaluated on as many games beside the first group: 4 episodes, two at a time."""
    config = a_run(eval={"every": 100, "episodes": 2})
    assert times(config, steps=2) == [12.0, 24.0]  # the evaluation plays while the learner trains
    slow = msgspec.structs.replace(FIGURES, learner_step=0.0, learner_turn=0.0, publish=0.0)
    assert times(config, slow, 2) == [12.0, 18.0]  # published once the evaluation is done, at 12 s


def test_an_evaluation_on_the_panel_plays_the_games_of_the_panel():
    """As above with 2 games, however many `eval.episodes` there would be."""
    config = a_run(eval={"every": 100, "episodes": 100, "panel": 2, "on_panel": True})
    assert times(config, steps=2) == [12.0, 24.0]


def test_one_server_redis_and_the_controller_do_one_thing_at_a_time():
    """A round of two turns is sampled after 2 s. The server takes a second for each and is done at 3 and 4 s. From then
    on the two episodes are a second apart, and the second one ends its third turn at 10 s."""
    figures = msgspec.structs.replace(FIGURES, env_step=1.0)
    assert times(a_run(), figures, 1) == [16.0]
    figures = msgspec.structs.replace(FIGURES, store_turn=0.5)
    assert times(a_run(), figures, 1) == [15.0]  # 1.5 s for each of the two episodes
    figures = msgspec.structs.replace(FIGURES, control_group=4.0)
    assert times(a_run(), figures, 1) == [16.0]


def test_a_forecast_has_rates_shares_and_cost():
    config = a_run(rollout={"gpus": 1}, learner={"ranks": 2, "gpus": 1})
    found = forecast(config, FIGURES, steps=4, price=2.0)  # 10.5 s a step: 6 sampled, 3.5 trained, 1 published
    assert found.steps_per_hour == pytest.approx(3600 / 10.5)
    assert found.learner_idle == pytest.approx(6 / 10.5)
    assert found.workers_idle == pytest.approx(4.5 / 10.5)
    assert found.gpus == 3
    assert found.gpu_hours == pytest.approx(3 * 100 * 10.5 / 3600)
    assert found.cost == pytest.approx(2 * found.gpu_hours)


def test_a_forecast_counts_evaluations_and_checkpoints_that_are_rarer_than_its_steps():
    """20 steps of 12 s. The checkpoint takes 10 s, in 6 of which the next groups are sampled."""
    figures = msgspec.structs.replace(FIGURES, checkpoint=10.0)
    assert forecast(a_run(checkpoint={"every": 20}), figures, steps=10).steps_per_hour == \
        pytest.approx(20 * 3600 / (20 * 12 + 4))
    assert forecast(a_run(eval={"every": 20, "episodes": 64}), FIGURES, steps=10).steps_per_hour < 299


def test_intervals_that_rarely_meet_are_not_simulated_until_they_do():
    """37 and 41 meet after 1,517 steps. 9 checkpoints take 369 steps, nearly 10 evaluations."""
    config = a_run(eval={"every": 37, "episodes": 1}, checkpoint={"every": 41}).model_copy(update={"steps": 5000})
    assert whole_rounds(config, 10) == 369
    near = a_run(eval={"every": 4, "episodes": 1}, checkpoint={"every": 10})
    assert [whole_rounds(near, least) for least in (10, 30)] == [20, 40]
    assert whole_rounds(a_run(), 10) == 10


def test_no_share_is_below_0_where_sums_round():
    """0.1 + 0.2 is more than 0.3, and -0% was printed."""
    totals = [Totals(time=0.0, step=1), Totals(time=0.3, step=2, workers_busy=0.1 + 0.2)]
    found = forecast_between(a_run(), totals, price=0)
    assert f"{found.workers_idle:.0%}" == "0%"
