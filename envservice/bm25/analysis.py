"""Text to index terms, as Lucene's English analysis makes them.

The analysis splits words at the boundaries of Unicode's annex 29, removes a possessive 's, lowers the case, drops 33
stop words, and stems. Each ideograph, Hiragana letter or pictograph (the registered sign is one) is a word of its own.
Two things are not covered: sequences of emoji, and letters that came into Unicode after Lucene 8.11.
"""

from __future__ import annotations

import re

import regex

from envservice.bm25.porter import stem

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
    found = (term_of(word) for word in words(text))
    return [term for term in found if term is not None]
