"""The comparison with the real control plane, with times of milliseconds."""

from msgspec import structs

from lab.simulation import check


def test_every_setup_is_played_and_predicted_and_no_step_is_faster_than_its_waits(monkeypatch):
    """A step cannot end before one episode of two turns and its training: 2 · (20 + 1) + 10 + 1 ms."""
    fast = structs.replace(check.TIMES, turns=(2,), turn_alone=0.02, turn_share=0.001, learner_step=0.01,
                           learner_turn=0.0, publish=0.001)
    monkeypatch.setattr(check, "TIMES", fast)
    monkeypatch.setattr(check, "STEPS", 2)
    monkeypatch.setattr(check, "SETUPS", ((2, 16, 0), (1, 32, 1)))
    figures = check.run()
    assert [figure.name for figure in figures] == [
        "2 workers of 16 slots, staleness 0", "1 workers of 32 slots, staleness 1"]
    on_policy = figures[0]
    assert on_policy.reference is not None
    assert 0 < on_policy.reference <= 3600 / 0.053
    assert all(figure.value > 0 for figure in figures)
