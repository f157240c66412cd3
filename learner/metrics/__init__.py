"""Reports on learner steps: rows of metrics.jsonl, gauges and traces."""
