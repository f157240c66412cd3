"""Metrics, heartbeats, logs and traces of every process."""
