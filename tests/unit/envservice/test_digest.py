import hashlib
import json

from toy_environment import ToyEnvironment

from envservice.base import Outcome
from envservice.server.sessions import engine_tag, first_digest, next_digest, tag_of

FIRST = Outcome(observation="Ä room.", admissible_actions=["go on", "look"])
THEN = Outcome(observation="A door.", admissible_actions=[], reward=1.0, done=True, won=True)


def by_hand(*parts: object) -> str:
    text = json.dumps(list(parts), separators=(",", ":"), ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def test_the_chain_is_what_the_page_says():
    d0 = by_hand("abc/toy/train/00", "", "Ä room.", ["go on", "look"], 0.0, False, False)
    d1 = by_hand(d0, "go on", "A door.", [], 1.0, True, True)
    first = first_digest("corridor@1", "abc", "toy/train/00", FIRST)
    assert first == f"corridor@1:{d0}"
    assert next_digest(first, "go on", THEN) == f"corridor@1:{d1}"


def test_every_part_changes_the_digest():
    base = next_digest("e@1:0", "go on", THEN)
    fields = {"observation": THEN.observation, "admissible_actions": [], "reward": 1.0, "done": True, "won": True}
    changes = {"observation": "x", "admissible_actions": ["x"], "reward": 0.5, "done": False, "won": False}
    others = {next_digest("e@1:0", "go on", Outcome(**{**fields, key: value})) for key, value in changes.items()}
    others |= {next_digest("e@1:1", "go on", THEN), next_digest("e@1:0", "go off", THEN)}
    assert len(others) == 7
    assert base not in others
    assert first_digest("e@1", "a", "t", FIRST) != first_digest("e@1", "b", "t", FIRST)


def test_the_tag_names_engine_and_version():
    assert engine_tag(ToyEnvironment(version="2")) == "corridor@2"
    assert tag_of("a:b@1:ff") == "a:b@1"
    assert tag_of("ff") == ""
