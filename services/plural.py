"""A number with its noun, in lines that people read."""

from __future__ import annotations


def number_of(count: int, noun: str) -> str:
    """Returns `1 game` or `1,024 games`: the noun takes an s unless the number is one."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
