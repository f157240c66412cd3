"""Starts the parts of a run after checking them: plan, preflight, topology, processes."""
