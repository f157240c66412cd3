"""Why an episode was lost: how far it came, and its mistakes."""

import pytest

from envservice.alfworld.lost_episodes import explain
from envservice.spec import LostTurn

ROOM = ("Welcome.\n\nYou are in the middle of a room. Looking quickly around you, you see a cabinet 1, a countertop 1, "
        "and a microwave 1.\n\nYour task is to: ")
SAW = "You arrive at countertop 1. On the countertop 1, you see a mug 2, and a egg 1."
TOOK = "You pick up the mug 2 from the countertop 1."
HEATED = "You heat the mug 2 using the microwave 1."
PLACED = "You move the mug 2 to the cabinet 1."
LAMP = "You arrive at cabinet 1. On the cabinet 1, you see a desklamp 1."


def stage(task: str, *texts: str) -> str:
    *before, final = [ROOM + task, *texts]
    if not before:
        before = [final]
    return explain([LostTurn(observation=text, action="look", admissible=True) for text in before], final).stage


@pytest.mark.parametrize(("task", "texts", "expected"), [
    ("put a mug in cabinet.", [], "never found the object"),
    ("put a mug in cabinet.", [SAW, "Nothing happens."], "saw the object, never held it"),
    ("put a mug in cabinet.", [SAW, TOOK], "had it ready, never placed it"),
    ("put a hot mug in cabinet.", [SAW, TOOK, PLACED], "held it, never treated it"),
    ("put a hot mug in cabinet.", [SAW, TOOK, HEATED], "had it ready, never placed it"),
    ("put two mug in cabinet.", [SAW, TOOK], "held one of two, placed none"),
    ("put two mug in cabinet.", [SAW, TOOK, PLACED], "placed one of two, did not bring the other"),
    ("look at mug under the desklamp.", [SAW, TOOK, "Nothing happens."], "held it, never found the lamp"),
    ("look at mug under the desklamp.", [LAMP, SAW, TOOK, "Nothing happens."], "held it, never used the lamp"),
])
def test_the_stage_is_the_first_part_that_was_not_done(task, texts, expected):
    assert stage(task, *texts) == expected


@pytest.mark.parametrize(("action", "expected"), [
    ("go to countertop 1", "goes where it is"),
    ("go to countertop 7", "wrong number of a place"),
    ("go to shelf 1", "no such place"),
    ("take mug 1 from countertop 1", "wrong number of an object"),
    ("take pen 1 from countertop 1", "object is not there"),
    ("take mug 2 from countertop 1", "takes from another place"),
    ("move mug 2 to cabinet 1", "object is not in hand"),
    ("dance", "other"),
])
def test_mistakes_with_an_empty_hand(action, expected):
    turns = [LostTurn(observation=ROOM + "put a mug in cabinet.", action="go to countertop 1", admissible=True),
             LostTurn(observation=SAW, action=action, admissible=False)]
    assert dict(explain(turns, "Nothing happens.").mistakes) == {expected: 1}


@pytest.mark.parametrize(("action", "expected"), [
    ("move mug 1 to cabinet 1", "wrong number of an object"),
    ("move egg 1 to cabinet 1", "object is not in hand"),
    ("heat mug 2 with microwave 1", "not possible here"),
    ("take egg 1 from countertop 1", "takes with a full hand"),
])
def test_mistakes_with_a_full_hand(action, expected):
    turns = [LostTurn(observation=text, action=did, admissible=fine) for text, did, fine in (
        (ROOM + "put a mug in cabinet.", "go to countertop 1", True), (SAW, "take mug 2 from countertop 1", True),
        (TOOK, action, False))]
    assert dict(explain(turns, "Nothing happens.").mistakes) == {expected: 1}


def test_texts_of_something_else_are_refused():
    with pytest.raises(ValueError, match="not a task"):
        explain([LostTurn(observation="Find the key.", action="look", admissible=True)], "")
