"""Renumbered games are the same games under other names."""

import re

from envservice.alfworld.engine import OwnSession
from envservice.alfworld.game import parse_game
from envservice.alfworld.generator import generate
from envservice.alfworld.teacher import Renumbered

GAME = generate("train", 3)


def plain(outcome) -> str:
    return re.sub(r"\d+", "#", outcome.observation)


def test_every_answer_differs_in_object_numbers_only():
    real, other = OwnSession(parse_game(GAME)), Renumbered(OwnSession(parse_game(GAME)), seed=4)
    outcomes = [(real.reset(), other.reset())]
    assert outcomes[0][0] == outcomes[0][1]
    for command in GAME["walkthrough"]:
        shown = [each for each in outcomes[-1][1].admissible_actions if other._rename(each, real=True) == command]
        assert len(shown) == 1
        outcomes.append((real.step(command), other.step(shown[0])))
    assert outcomes[-1][1].won
    assert all(plain(mine) == plain(theirs) for mine, theirs in outcomes)
    assert all(theirs.admissible_actions == sorted(theirs.admissible_actions) for _, theirs in outcomes)
    assert any(mine.observation != theirs.observation for mine, theirs in outcomes)


def test_an_inadmissible_action_stays_inadmissible_after_renumbering():
    session = Renumbered(OwnSession(parse_game(GAME)), seed=4)
    start = session.reset()
    for action in ("take mug 3 from cabinet 1", "go to cabinet 99", "mug 7", ""):
        assert action not in start.admissible_actions
        assert session.step(action).observation == "Nothing happens."
