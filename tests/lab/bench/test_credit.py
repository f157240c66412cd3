"""The bench's arithmetic on a small size."""

import pytest

from lab.bench import credit
from learner.credit.registry import ESTIMATORS


def test_the_bench_times_every_estimator_without_a_critic_and_agrees_with_its_reference(monkeypatch):
    for name, size in {"_GROUPS": 2, "_EPISODES": 4, "_STEPS": 12, "_PLACES": 6, "_REPEATS": 2}.items():
        monkeypatch.setattr(credit, name, size)
    figures = {figure.name: figure for figure in credit.run()}
    assert {name for name, each in ESTIMATORS.items() if not each.needs_critic} <= set(figures)
    for name in ("gagpo", "gigpo", "graft"):
        assert figures[name].ratio == pytest.approx(figures[name].reference / figures[name].value)
        assert figures[f"{name}, largest difference"].value < 1e-6
    assert figures["of each, keys and records"].value > 0
