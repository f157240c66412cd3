"""Task types that need a JVM which has played nothing, because a second game in one reads otherwise."""

from __future__ import annotations

NEEDS_FRESH: frozenset[str] = frozenset()
"""Measured by `python -m envservice.scienceworld.measure`."""
