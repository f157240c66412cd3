"""Text to index terms, as Lucene's English analysis makes them.

The analysis splits words at the boundaries of Unicode's annex 29, removes a possessive 's, lowers the case, drops 33
stop words, and stems. Each ideograph, Hiragana letter or pictograph (the registered sign is one) is a word of its own.
Two things are not covered: sequences of emoji, and letters that came into Unicode after Lucene 8.11.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

import regex

# The Porter stemmer in its author's own variant, which is the one that Lucene uses.
#
# M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, with the two departures of the author's
# published implementation: step 2 has (m>0) BLI -> BLE for ABLI -> ABLE, and (m>0) LOGI -> LOG. Words of one or two
# letters stay as they are. Every character that is no vowel letter, such as a digit, counts as a consonant.

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
    flags: list[bool] = []
    for letter in word:
        flags.append(letter not in _VOWELS and (letter != "y" or not flags or not flags[-1]))
    return flags


def _measure(word: str) -> int:
    """Returns m in [C](VC)^m[V]: the number of times that a consonant follows a vowel."""
    consonants = _consonants(word)
    return sum(not before and after for before, after in pairwise(consonants))


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
    """Restores the spelling of a word that has lost -ed or -ing, such as an e at its end."""
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


VERSION = "1"
"""The version of the analysis. An index that another version made is stale."""
_LONGEST = 255
"""The most characters of a word. A longer one is cut into several."""
_STOP_WORDS = frozenset((
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
))  # fmt: skip

# Underscores, a letter or digit; then letters, digits and underscores, one of :.' between letters, one of .,;' between
# digits. Both patterns match the same words; the first is several times as fast.
_ASCII = re.compile(
    rf"_*[a-z0-9](?:[a-z0-9_]|(?<=[a-z])[:.'](?=[a-z])|(?<=[0-9])[.,;'](?=[0-9])){{0,{_LONGEST - 1}}}")
_LETTER = r"\p{WB=ALetter}\p{WB=Hebrew_Letter}"
_WORD = _LETTER + r"\p{WB=Numeric}"
_MARK = r"\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}"
_KANA = r"\p{WB=Katakana}"
_JOIN = r"\p{WB=ExtendNumLet}"
_UNICODE = regex.compile(
    rf"(?V1)[\p{{Ideographic}}\p{{Hiragana}}][{_MARK}]*"
    rf"|[\p{{Emoji}}\p{{Extended_Pictographic}}\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705--\p{{ASCII}}]"
    rf"[{_MARK}\p{{Emoji_Modifier}}]*"
    rf"|\p{{LB=SA}}[\p{{LB=SA}}{_MARK}]*"
    # A run of Katakana is one word. Only an underscore joins it to letters and digits.
    rf"|{_JOIN}*[{_WORD}{_KANA}](?:(?<!{_KANA}[{_MARK}]*)[{_WORD}]|(?<=[{_KANA}{_JOIN}][{_MARK}]*){_KANA}|[{_JOIN}{_MARK}]"
    rf"|(?<=[{_LETTER}][{_MARK}]*)[:\p{{WB=MidLetter}}\p{{WB=MidNumLet}}\p{{WB=Single_Quote}}](?=[{_MARK}]*[{_LETTER}])"
    rf"|(?<=\p{{WB=Numeric}}[{_MARK}]*)[\p{{WB=MidNum}}\p{{WB=MidNumLet}}\p{{WB=Single_Quote}}]"
    rf"(?=[{_MARK}]*\p{{WB=Numeric}})){{0,{_LONGEST - 1}}}")
_LOWER = {0x130: "i", 0x3A3: "σ"}  # letters that Python lowers by their neighbours, or into two
_POSSESSIVE = re.compile("['’\uff07]s$")


def words(text: str) -> list[str]:
    """Returns the words of a text in lower case, before stop words are dropped and words are stemmed."""
    if text.isascii():
        return _ASCII.findall(text.lower())
    return _UNICODE.findall(text.translate(_LOWER).lower())


def term_of(word: str) -> str | None:
    """Returns the index term of one of `words`, or None for a stop word."""
    word = _POSSESSIVE.sub("", word)
    return None if word in _STOP_WORDS else stem(word)


def terms(text: str) -> list[str]:
    """Returns the index terms of a text in their order, with repetitions."""
    stems = (term_of(word) for word in words(text))
    return [term for term in stems if term is not None]
