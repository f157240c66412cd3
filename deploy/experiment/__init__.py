"""Experiments: many runs, one committed result."""
