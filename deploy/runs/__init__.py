"""A run's folder: paths, records, live status, results."""
