"""The Porter stemmer in its author's own variant, which is the one that Lucene uses.

M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, with the two departures of the author's
published implementation: step 2 has (m>0) BLI -> BLE for ABLI -> ABLE, and (m>0) LOGI -> LOG. Words of one or two
letters stay as they are. Every character that is no vowel letter, such as a digit, counts as a consonant.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

_VOWELS = frozenset("aeiou")
_STEP_2 = (
    ("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("bli", "ble"),
    ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate"),
    ("ator", "ate"), ("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"),
    ("iviti", "ive"), ("biliti", "ble"), ("logi", "log"),
)  # fmt: skip
_STEP_3 = (
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", ""),
)  # fmt: skip
_STEP_4 = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
    "ous", "ive", "ize",
)  # fmt: skip


@lru_cache(maxsize=200_000)
def stem(word: str) -> str:
    """Returns the stem of a lower-case word."""
    if len(word) <= 2:
        return word
    word = _past_and_gerund(_plural(word))
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _derived(_derived(word, _STEP_2), _STEP_3)
    return _final_e_and_double_l(_residual(word))


def _consonants(word: str) -> list[bool]:
    """Says for each letter whether it is a consonant. A y is one at the start and after a vowel."""
    found: list[bool] = []
    for letter in word:
        found.append(letter not in _VOWELS and (letter != "y" or not found or not found[-1]))
    return found


def _measure(word: str) -> int:
    """Returns m in [C](VC)^m[V]: the number of times that a consonant follows a vowel."""
    found = _consonants(word)
    return sum(not before and after for before, after in pairwise(found))


def _has_vowel(word: str) -> bool:
    return not all(_consonants(word))


def _ends_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _consonants(word)[-1]


def _ends_cvc(word: str) -> bool:
    """Says whether the end is consonant, vowel, consonant, where the last is none of w, x, y."""
    return len(word) > 2 and _consonants(word)[-3:] == [True, False, True] and word[-1] not in "wxy"


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past_and_gerund(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        if word.endswith(suffix) and _has_vowel(word[: -len(suffix)]):
            return _restored(word[: -len(suffix)])
    return word


def _restored(word: str) -> str:
    """Spells the rest of a word without -ed or -ing as a word again."""
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if _ends_double(word):
        return word if word[-1] in "lsz" else word[:-1]
    return word + "e" if _measure(word) == 1 and _ends_cvc(word) else word


def _derived(word: str, rules: tuple[tuple[str, str], ...]) -> str:
    for suffix, new in rules:
        if word.endswith(suffix):
            left = word[: -len(suffix)]
            return left + new if _measure(left) > 0 else word
    return word


def _residual(word: str) -> str:
    for suffix in _STEP_4:
        if word.endswith(suffix):
            left = word[: -len(suffix)]
            if suffix == "ion" and not left.endswith(("s", "t")):
                return word
            return left if _measure(left) > 1 else word
    return word


def _final_e_and_double_l(word: str) -> str:
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _ends_cvc(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word
