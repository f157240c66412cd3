"""Reports on learner steps: rows of metrics.jsonl, and gauges."""
