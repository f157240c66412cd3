"""A small invented world to ask about, so that search can be tried without data: people, towns and regions.

One seed makes it, so it is the same everywhere. Nothing in it is true, so a model must look up every answer. Names are
made of the same parts, so that a search also returns near misses. A one-hop question needs one document, a two-hop
question two. All questions that name a person or a town are in one split.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from envservice.search.questions import Question, Questions, by_hash

ONE_HOP = "invented-1hop"
TWO_HOP = "invented-2hop"
_SEED = 20260101
_PEOPLE, _TOWNS, _REGIONS = 240, 60, 12
_TRADES = (
    "glass blower", "map maker", "organ builder", "bee keeper", "clock maker", "stone mason", "rope maker",
    "book binder", "ferry pilot", "salt trader", "bell founder", "weaver",
)  # fmt: skip
_CRAFTS = (
    "blue paper", "smoked cheese", "copper kettles", "wool carpets", "pear cider", "painted tiles", "oak barrels",
    "sea charts", "honey bread", "silver combs", "clay flutes", "black soap",
)  # fmt: skip
_STARTS = ("Al", "Bre", "Cor", "Del", "Es", "Fen", "Gar", "Hol", "Is", "Jor", "Kel", "Lor", "Mar", "Nor", "Or", "Pel")
_MIDDLES = ("da", "be", "ri", "mo", "ve", "li", "ta", "so")
_ENDS = {"person": ("n", "s", "l", "ra"), "town": ("ford", "wick", "stead", "holm"), "river": ("va", "ne", "sk"),
         "region": ("mark", "land", "shire")}


@dataclass(frozen=True, slots=True)
class Town:
    """A place with its facts."""

    name: str
    region: str
    river: str
    craft: str
    founded: int

    @property
    def text(self) -> str:
        """Returns the document about it."""
        return (f"{self.name} is a town in {self.region}. It lies on the river {self.river}, was founded in "
                f"{self.founded} and is known for its {self.craft}.")


@dataclass(frozen=True, slots=True)
class Person:
    """A person, who was born in a town."""

    name: str
    born_in: Town
    trade: str
    year: int

    @property
    def text(self) -> str:
        """Returns the document about the person."""
        article = "an" if self.trade[0] in "aeiou" else "a"
        return f"{self.name} was {article} {self.trade}, born in {self.born_in.name} in {self.year}."


@dataclass(frozen=True, slots=True)
class World:
    """All people and places."""

    people: tuple[Person, ...]
    towns: tuple[Town, ...]

    def documents(self) -> list[tuple[str, str]]:
        """Returns (id, contents) pairs. The title is in quotes on a line of its own, as in Search-R1's corpus."""
        named = [(each.name, each.text) for each in (*self.people, *self.towns)]
        return [(f"doc{number:03d}", f'"{name}"\n{text}') for number, (name, text) in enumerate(named)]

    def questions(self) -> Questions:
        """Returns the questions, each in the split of the person or town that it names."""
        about: dict[str, str] = {}
        asked: list[Question] = []

        def ask(name: str, text: str, golden: object, source: str) -> None:
            about[text] = name
            asked.append(Question(question=text, golden_answers=(str(golden),), data_source=source))

        for person in self.people:
            ask(person.name, f"In which town was {person.name} born?", person.born_in.name, ONE_HOP)
            ask(person.name, f"What was the trade of {person.name}?", person.trade, ONE_HOP)
            ask(person.name, f"On which river lies the birthplace of {person.name}?", person.born_in.river, TWO_HOP)
            ask(person.name, f"In which region was {person.name} born?", person.born_in.region, TWO_HOP)
        for town in self.towns:
            ask(town.name, f"On which river does {town.name} lie?", town.river, ONE_HOP)
            ask(town.name, f"In which year was {town.name} founded?", town.founded, ONE_HOP)
            ask(town.name, f"What is {town.name} known for?", town.craft, ONE_HOP)
        return by_hash(asked, lambda question: about[question.question])


@cache
def world() -> World:
    """Returns the world, which is made once per process."""
    rng = random.Random(_SEED)
    regions, rivers = _names(rng, "region", _REGIONS), _names(rng, "river", _TOWNS // 2)
    towns = tuple(
        Town(name, rng.choice(regions), rng.choice(rivers), rng.choice(_CRAFTS), rng.randint(900, 1800))
        for name in _names(rng, "town", _TOWNS))
    first, last = _names(rng, "person", 40), _names(rng, "person", 40)
    names = rng.sample([f"{one} {other}" for one in first for other in last if one != other], _PEOPLE)
    people = tuple(Person(name, rng.choice(towns), rng.choice(_TRADES), rng.randint(1700, 1950)) for name in names)
    return World(people, towns)


def _names(rng: random.Random, kind: str, count: int) -> list[str]:
    return rng.sample([start + middle + end for start in _STARTS for middle in _MIDDLES for end in _ENDS[kind]], count)
