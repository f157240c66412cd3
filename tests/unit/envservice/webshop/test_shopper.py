"""The scripted shopper, its noise, and the published figures."""

import random
from collections import Counter

import pytest

from envservice.base import Outcome
from envservice.webshop.reader import instruction_of, parse_request
from envservice.webshop.shopper import Shopper, missing_words
from envservice.webshop.spec import TEACHER, disturb
from lab.webshop_scores import PLAYERS, measure
from services.config.tree import SftSection


def play(environment, task, noise=0.0):
    rng = random.Random(task)
    session = environment.open(task)
    now = session.reset()
    shopper, actions = Shopper(now), []
    while not now.done and len(actions) < 15:
        action = shopper.act(now).action
        if rng.random() < noise:
            action = disturb(action, now, now, rng)
        actions.append(action)
        now = session.step(action)
    return now, actions


def test_it_buys_what_was_asked_for(shop):
    now, actions = play(shop, "webshop/train/0")
    assert now.won
    assert actions[0] == "search[cordless table lamps]"
    assert actions[-1] == "click[buy now]"


def test_it_acts_on_text_alone(catalogue_shop):
    """The same texts get the same actions, whatever world is behind them."""
    task = catalogue_shop.tasks("train")[0]
    session = catalogue_shop.open(task)
    now = session.reset()
    one, other = Shopper(now), Shopper(now)
    while not now.done:
        move = one.act(now)
        assert other.act(now) == move
        now = session.step(move.action)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_it_never_breaks_and_takes_part_of_the_goals_only(catalogue_shop, noise):
    ends = [play(catalogue_shop, task, noise) for task in catalogue_shop.tasks("train")[::40]]
    won = sum(now.won for now, _ in ends) / len(ends)
    assert 0.2 < won < 0.8
    if not noise:
        assert all(now.done for now, _ in ends)


def test_noise_never_buys_and_never_chooses(catalogue_shop):
    rng, session = random.Random(0), catalogue_shop.open(catalogue_shop.tasks("train")[0])
    now = session.reset()
    pages = [now, session.step(f"search[{instruction_of(now)}]")]
    pages.append(session.step(pages[1].admissible_actions[2]))
    drawn = [{disturb("click[x]", pages[0], page, rng) for _ in range(200)} for page in pages]
    assert all(action.startswith("search[") for action in drawn[0])
    assert drawn[1] == set(pages[1].admissible_actions)
    assert drawn[2] == {f"click[{name}]" for name in ("description", "features", "reviews", "< prev", "back to search")}


def test_noise_asks_in_vain_for_an_option_that_is_not_there(shop):
    wish = instruction_of(shop.open("webshop/train/0").reset())
    page = ["Instruction:", wish, "Back to Search", "< Prev", "A lamp", "Price: $9.00", "Rating: N.A.", "Description",
            "Features", "Reviews", "Buy Now"]
    bare = Outcome(observation=" [SEP] ".join(page), admissible_actions=["click[< prev]", "click[buy now]"])
    wanted = {f"click[{value}]" for value in parse_request(wish).options.values()}
    assert wanted
    rng = random.Random(0)
    drawn = Counter(disturb("click[x]", bare, bare, rng) for _ in range(400))
    assert wanted < set(drawn)
    assert 150 < sum(drawn[action] for action in wanted) < 250


def test_its_answers_are_what_the_templates_parse(shop):
    first = shop.open("webshop/train/0").reset()
    player = TEACHER.player(first, random.Random(0), SftSection())
    assert player.act(first) == "<think>search</think><action>search[cordless table lamps]</action>"


def test_words_are_said_in_singular_and_plural():
    assert missing_words(["table", "lamps", "brushes", "glass"], "Tables lamp", "brush") == ["glass"]


def test_the_published_figures_are_those_of_the_catalogue(catalogue_shop):
    """docs/environments.md names them for all test goals; a fifth is enough to see that they are of this catalogue."""
    tasks = catalogue_shop.tasks("test")[::5]
    found = {name: measure(catalogue_shop, tasks, make) for name, make in PLAYERS.items()}
    assert found["random"].success < 0.02 < 0.5 < found["shopper"].success < 0.75
