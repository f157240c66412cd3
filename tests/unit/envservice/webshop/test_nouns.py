"""Our tagger: worked titles, and pairs of titles whose band of the title score is known from spaCy's models."""

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from envservice.webshop.environment import open_webshop
from envservice.webshop.nouns import fallback, find_tagger
from services.config.env import WebshopSection

CORD = "BRST AC Power Cord Outlet Socket Cable Plug Lead for Panasonic SC-HT830V DVD/VCR Combo Home Theater System"
BAR = "Saireed UL Listed 2 Prong Power Cord for JBL Bar 3.1 Bar 2.1 Channel 4K Ultra HD Soundbar"


@pytest.mark.parametrize(("title", "nouns"), [
    ("Velmora Nova Cordless Table Lamp", ("velmora", "nova", "table", "lamp")),
    ("Foldable Padded Bed, Cable and Washable Seed Dish", ("bed", "cable", "seed", "dish")),
    ("Lamp, lamp & LAMPS (Pack of 2)", ("lamp", "lamp", "lamps", "pack")),
    ("Waterproof Black Men's T-Shirt, 16 oz", ("men's", "shirt")),
    ("", ()), ("6.5 x 4 | 12", ()), ("Crème brûlée", ("crème", "brûlée")),
])  # fmt: skip
def test_nouns_are_what_neither_list_nor_ending_excludes(title, nouns):
    assert fallback(title) == nouns


@pytest.mark.parametrize(("wanted", "bought", "above", "to"), [
    (f"{BAR} Home Theater System Subwoofer", CORD, 0.2, 1.0),
    (BAR, CORD, 0.1, 0.2),
    ("Rusticware 921ORB Kitchen and Bath Cabinet Knob",
     "Minkissy 2pcs Stainless Steel Eyebrow Tweezers Blackhead Acne Remover Portable Makeup Tweezers", -1, 0.05),
])
def test_known_pairs_fall_into_the_band_that_spacy_puts_them(wanted, bought, above, to):
    nouns = fallback(wanted)
    assert above < len(set(nouns) & set(fallback(bought))) / len(nouns) <= to


def test_the_tagger_in_use_has_a_name_and_finds_nouns():
    name, nouns = find_tagger()
    assert name == "endings-1" or name.startswith("spacy-en_core_web_sm-")
    assert "lamp" in nouns("Oak Table Lamp")


@dataclass
class Token:
    text: str
    pos_: str


class Pipeline:
    """Stands in for a spaCy pipeline with its token interface. It tags `lamp` as a noun."""

    meta = {"version": "3.8.0"}  # noqa: RUF012 - as the real one's

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, title: str) -> list[Token]:
        self.asked.append(title)
        kinds = {"Oak": "PROPN", "Table": "NOUN", "Lamp": "NOUN", "Washable": "ADJ", "glows": "VERB"}
        return [Token(word, kinds.get(word, "X")) for word in title.split()]


@pytest.fixture
def spacy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package `spacy` whose `load` is to be set."""
    module: Any = ModuleType("spacy")
    monkeypatch.setitem(sys.modules, "spacy", module)
    return module


def test_spacy_s_nouns_and_names_count_where_its_model_is_installed(spacy):
    pipeline, loaded = Pipeline(), []
    spacy.load = lambda name: loaded.append(name) or pipeline
    name, nouns = find_tagger()
    assert (name, loaded) == ("spacy-en_core_web_sm-3.8.0", ["en_core_web_sm"])
    for _ in range(2):
        assert nouns("Washable Oak Table Lamp glows Lamp") == ("oak", "table", "lamp", "lamp")
    assert pipeline.asked == ["Washable Oak Table Lamp glows Lamp"]


def test_spacy_without_its_model_is_as_good_as_none(spacy):
    def load(name: str) -> Pipeline:
        raise OSError(f"[E050] Can't find model '{name}'.")

    spacy.load = load
    name, nouns = find_tagger()
    assert (name, nouns("Washable Oak Table Lamp")) == ("endings-1", ("oak", "table", "lamp"))


def test_a_shop_with_spacy_says_so_in_its_version(spacy):
    spacy.load = lambda _: Pipeline()
    assert open_webshop(None, WebshopSection()).version == "1+catalogue+spacy-en_core_web_sm-3.8.0"
