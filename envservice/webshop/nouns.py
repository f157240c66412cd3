"""The nouns of a title, which decide whether two products are of one type.

The original uses spaCy's small English model, and so do we if it is installed. Not every package index has it, so there
is a tagger of our own, which uses stop words and word endings and takes a few microseconds per title. The environment's
version names its tagger, so it is in /v1/info, every digest and every result. The tagger only matters if a product
other than the goal's is bought: see docs/environments.md.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

Tagger = Callable[[str], tuple[str, ...]]
"""Maps a title to its nouns in lower case, in order, with repeats."""
MODEL = "en_core_web_sm"
_KEPT = 65_536
"""Number of titles whose nouns are cached."""
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
"""Adjectives that are frequent in titles and have no typical ending."""
_NO_NOUNS = frozenset(f"{_TIES} {_MEASURES} {_ADJECTIVES}".split())
_NO_NOUN_ENDINGS = ("able", "ible", "ful", "less", "ous", "ive", "ish", "ly", "proof", "resistant", "ed")


def fallback(title: str) -> tuple[str, ...]:
    """Returns the words of two letters or more that neither the stop list nor their ending excludes."""
    words = (match.group().lower() for match in _WORD.finditer(title))
    return tuple(word for word in words if word not in _NO_NOUNS and not _ends_otherwise(word))


def _ends_otherwise(word: str) -> bool:
    """Returns whether an ending shows that a word is no noun. The stem needs three letters or more: `table` and `seed`
    are nouns."""
    return any(word.endswith(ending) and len(word) > len(ending) + 2 for ending in _NO_NOUN_ENDINGS)


def find_tagger() -> tuple[str, Tagger]:
    """Returns name and tagger: spaCy's model if it is installed, else ours."""
    try:
        import spacy  # pyright: ignore[reportMissingImports]

        model: Any = spacy.load(MODEL)
    except (ImportError, OSError):
        return "endings-1", lru_cache(maxsize=_KEPT)(fallback)
    lock = threading.Lock()  # spaCy does not promise that a pipeline is thread-safe

    def nouns(title: str) -> tuple[str, ...]:
        with lock:
            return tuple(token.text.lower() for token in model(title) if token.pos_ in ("NOUN", "PROPN"))

    return f"spacy-{MODEL}-{model.meta['version']}", lru_cache(maxsize=_KEPT)(nouns)
