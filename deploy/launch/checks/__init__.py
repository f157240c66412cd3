"""Checks before a run and behind `gagpo doctor`: each finds a mistake before anything heavy starts."""
