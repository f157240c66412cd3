"""Executes a training run from cold start to report, and sweeps over many runs."""
