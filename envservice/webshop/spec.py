"""The EnvironmentSpec of WebShop."""

from __future__ import annotations

import random
from collections.abc import Iterator

from envservice.base import Environment, Outcome
from envservice.spec import EnvironmentSpec, Finding, Teacher
from envservice.text.response_format import answer
from envservice.webshop import pages
from envservice.webshop.prompts import WebshopCompactTemplate, WebshopFullTemplate
from envservice.webshop.reader import clicks, instruction_of, parse_request, read
from envservice.webshop.shopper import Shopper, content_words, not_offered
from services.config.tree import EnvSection, SftSection
from services.process.packages import installed

_AWAY = tuple(name.lower() for name in (pages.DESCRIPTION, pages.FEATURES, pages.REVIEWS, pages.PREVIOUS, pages.BACK))
_FUTILE = 0.5
"""Share of the noise that clicks a wanted option that is not offered, if there is one."""


class WebshopDemonstrator:
    """A Demonstrator that plays the shopper's moves. The reason of a move is the thought."""

    def __init__(self, first: Outcome, rng: random.Random, sft: SftSection) -> None:
        del rng, sft  # its play is not random
        self._shopper = Shopper(first)

    def act(self, now: Outcome) -> str:
        move = self._shopper.act(now)
        return answer(move.thought, move.action)


def disturb(action: str, first: Outcome, now: Outcome, rng: random.Random) -> str:
    """Returns noise instead of `action`: a search for half of the wish, or any click except a purchase.

    On an item page the click leaves the page, because a wrong option would show nowhere and could not be undone. If a
    wanted option is not offered, half of the noise clicks it: a model that never saw this fail would repeat it forever.
    """
    del action, first
    page, request = read(now), parse_request(instruction_of(now))
    if page.name == "index":
        words = content_words(request.wish)
        return f"search[{' '.join(sorted(rng.sample(words, max(1, len(words) // 2)), key=words.index))}]"
    lacks = not_offered(request, page) if page.name == "item" else []
    if lacks and rng.random() < _FUTILE:
        return f"click[{rng.choice(lacks)}]"
    offered = [thing for thing in clicks(now) if page.name != "item" or thing in _AWAY]
    return f"click[{rng.choice(offered)}]"


TEACHER = Teacher(player=WebshopDemonstrator, disturb=disturb)


MODEL = "en_core_web_sm"


def open_environment(env: EnvSection) -> Environment:
    """Loads products and goals. It takes milliseconds for our catalogue, minutes for all 1.18 million products."""
    from envservice.webshop.environment import open_webshop

    return open_webshop(env.data, env.webshop)


def describe(env: EnvSection) -> str:
    """Names the source of the products, and settings that differ from the defaults, in one line."""
    chosen = env.webshop
    where = f"official products ({chosen.products}), in {env.data}" if env.data else "our own catalogue"
    flags = {"strict options": chosen.strict_options, "the first 500 held out": chosen.train_on_rest,
             "verl-agent's splits": chosen.verl_compat}
    return ", ".join([where, f"{chosen.goals} goals", *(name for name, on in flags.items() if on)])


def check(environment: Environment, task: str) -> None:
    """Checks only the id: a task cannot be broken once the product files are read."""
    environment.task_digest(task)


def findings() -> Iterator[Finding]:
    """Reports whether the original's tagger of nouns is installed. Without it, ours is used."""
    has_model = installed("spacy") is not None and installed(MODEL) is not None
    yield Finding(check="WebShop tagger", status="ok",
                  detail=f"{MODEL} of spaCy" if has_model else f"our own; {MODEL} of spaCy is not installed")


SPEC = EnvironmentSpec(
    open=open_environment, check=check, describe=describe, findings=findings, teacher=TEACHER,
    prompts={"full": WebshopFullTemplate, "compact": WebshopCompactTemplate},
)
