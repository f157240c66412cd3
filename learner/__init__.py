"""Training: credit, losses, packing, the optimizer step, checkpoints, cold start."""
