"""What every process shares: records, errors, config, logs, metrics; the store, the weights, the controller."""
