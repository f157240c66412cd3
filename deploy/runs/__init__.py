"""The folder of a run: paths, records, live status, results."""
