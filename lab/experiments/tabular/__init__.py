"""Estimators in mazes whose true values are known."""
