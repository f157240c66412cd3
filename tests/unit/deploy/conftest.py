"""Fixtures that tests of several parts of deploy/ share."""

from run_records import record, three_seeds

__all__ = ["record", "three_seeds"]
