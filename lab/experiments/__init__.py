"""Experiments: many runs and the table that compares them, whose small results are committed."""
