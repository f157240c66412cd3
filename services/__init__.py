"""Code that every process uses: records, errors, config, logs, metrics; the store, the weights, the controller."""
