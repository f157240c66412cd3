"""The nouns of a title, which decide whether two products are of one type.

The original asks spaCy's small English model; where that is installed, so do we. It cannot be had from every package
index, so there is a tagger of our own: by stop words and endings, a few microseconds a title. Which of the two a
server uses stands in its version, hence in /v1/info, in every digest and in every result. The tagger only matters for
a purchase of another product than the goal's: see docs/environments.md.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

Tagger = Callable[[str], tuple[str, ...]]
"""Title to its nouns in lower case, in order, with repeats."""
MODEL = "en_core_web_sm"
_KEPT = 65_536
"""Titles whose nouns are remembered."""
_WORD = re.compile(r"[^\W\d_]{2,}(?:['’-][^\W\d_]+)*")
_TIES = """
    a an and are as at be by for from has in into is it its new of on or our per that the their this to up us use
    via with without your you we all any both each every more most other some such no not only over under plus than
    then
"""
_MEASURES = """
    x oz fl lb lbs kg g mg ml l cm mm ft inch inches w v mah gb tb
"""
_ADJECTIVES = """
    big black blue bright brown clean clear cold cool cute dark dry easy extra fast fine firm flat free fresh full
    good gray great green grey hard heavy high hot ideal large light long low matte mini modern multi natural navy
    nice non old open orange perfect pink pro purple quick quiet rare red rich rose round safe sharp short slim
    small soft solid square stainless strong super sweet tall thick thin tiny top tough ultra vintage warm white
    wide xl xxl yellow young
"""
"""Those that titles are full of and that no ending gives away."""
_NO_NOUNS = frozenset(f"{_TIES} {_MEASURES} {_ADJECTIVES}".split())
_NO_NOUN_ENDINGS = ("able", "ible", "ful", "less", "ous", "ive", "ish", "ly", "proof", "resistant", "ed")


def fallback(title: str) -> tuple[str, ...]:
    """Words of two letters or more that neither the stop list nor their ending takes for something else."""
    words = (found.group().lower() for found in _WORD.finditer(title))
    return tuple(word for word in words if word not in _NO_NOUNS and not _ends_otherwise(word))


def _ends_otherwise(word: str) -> bool:
    """Whether an ending says that it is no noun; what is left without it must be longer than in `table` and `seed`."""
    return any(word.endswith(ending) and len(word) > len(ending) + 2 for ending in _NO_NOUN_ENDINGS)


def find_tagger() -> tuple[str, Tagger]:
    """Name and tagger: spaCy's model where it is installed, else ours."""
    try:
        import spacy  # pyright: ignore[reportMissingImports]

        model: Any = spacy.load(MODEL)
    except (ImportError, OSError):
        return "endings-1", lru_cache(maxsize=_KEPT)(fallback)
    lock = threading.Lock()  # a spaCy pipeline is not promised to be safe between threads

    def nouns(title: str) -> tuple[str, ...]:
        with lock:
            return tuple(token.text.lower() for token in model(title) if token.pos_ in ("NOUN", "PROPN"))

    return f"spacy-{MODEL}-{model.meta['version']}", lru_cache(maxsize=_KEPT)(nouns)
