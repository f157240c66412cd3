"""Metrics, heartbeats and logs of every process."""
