"""What a run starts, and the checks before it: plan, preflight, topology, processes."""
