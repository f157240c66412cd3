"""The sampler: vLLM in a process of its own, its settings, and its weights."""
