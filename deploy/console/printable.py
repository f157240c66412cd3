"""Text that a terminal only shows. Files, environments, servers and models may hold sequences that a terminal obeys."""

from __future__ import annotations

REPLACED = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """Returns the text with each control character, but line ends and tabs, replaced by U+FFFD."""
    if text.isprintable():
        return text
    return "".join(each if each in "\n\t" or each.isprintable() else REPLACED for each in text)
