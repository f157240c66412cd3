"""Our tagger: worked titles, and pairs of titles whose band of the title score is known from spaCy's models."""

import pytest

from envservice.webshop.nouns import fallback, find_tagger

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
