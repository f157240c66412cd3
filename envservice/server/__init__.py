"""The environment server: HTTP API, sessions, capacity, metrics."""
