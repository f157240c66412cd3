"""The soak over two servers for a few seconds, and the line through its memory."""

import random

import pytest

from envservice.registry import open_environment
from lab.bench import soak
from services.config.env import EnvSection
from services.errors import UserError


def test_a_soak_counts_what_was_played_rebuilt_and_left_behind(monkeypatch):
    monkeypatch.setattr(soak, "LOST", 0.5)
    monkeypatch.setattr(soak, "PERIOD_S", 0.2)
    told = []
    figures = {figure.name: figure for figure in soak.run(
        lambda *what: told.append(what), minutes=0.1, sessions="webshop=3,search=2")}
    for name in ("webshop", "search"):
        assert figures[f"{name}: episodes"].value >= 2
        assert figures[f"{name}: rebuilt sessions"].value > 0
        assert figures[f"{name}: episodes that diverged"].value == 0
        assert figures[f"{name}: errors"].value == 0
        assert figures[f"{name}: descriptors at the end, and at the start"].value <= 20
        line = f"{name}: memory slope of the server"
        assert figures[f"{line}, low"].value <= figures[line].value <= figures[f"{line}, high"].value
    assert told[0] == ("lists of games", 0, 1)


def test_questions_are_searched_for_and_answered():
    """Search QA lists no actions, so every action was `look`."""
    games, rng = open_environment(EnvSection(name="search")), random.Random(0)
    seen, actions = [], []
    for task in games.tasks("train")[:8]:
        session = games.open(task)
        first = now = session.reset()
        choose = soak.chooser("search", first, rng)
        while not now.done:
            actions.append(choose(now))
            now = session.step(actions[-1])
            seen.append(now.observation)
    assert any(observation.startswith("<information>") and "Doc 1" in observation for observation in seen)
    assert {action.partition(">")[0] for action in actions} == {"<search", "<answer"}


@pytest.mark.parametrize("text", ["", "alfworld", "alfworld=", "alfworld=0", "alfworld=x", "=3", "alfworld=3,"])
def test_sessions_that_cannot_be_read_are_a_mistake(text: str):
    with pytest.raises(UserError, match="--sessions"):
        soak.read_sessions(text)


def test_a_soak_too_short_for_a_slope_is_refused_before_it_plays():
    with pytest.raises(UserError, match=r"--minutes 0\.1 are too few"):
        soak.run(minutes=0.1, sessions="search=2")


def test_the_line_and_its_interval_by_hand():
    """Residuals 1/6, -1/3, 1/6: their squares sum to 1/6, and Student's t with one degree of freedom is 12.706."""
    slope, low, high = soak.slope([(0.0, 0.0), (1.0, 1.0), (2.0, 3.0)])
    assert slope == pytest.approx(1.5)
    half = 12.706 * ((1 / 6) / 1 / 2) ** 0.5
    assert (slope - low, high - slope) == (pytest.approx(half, rel=1e-4), pytest.approx(half, rel=1e-4))


def test_the_warm_up_does_not_count():
    looks = [soak.Look(float(at), 100 + (at if at < 100 else 100), 0.0, 0, 0) for at in range(400)]
    assert soak.hourly(looks, engines=False)[0] == pytest.approx(0.0, abs=1e-6)
