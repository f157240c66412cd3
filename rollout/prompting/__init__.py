"""Prompting baselines: a model is asked, and not trained."""
