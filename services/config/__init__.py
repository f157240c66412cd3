"""The typed configuration of a run: its tree, its environment sections, and how files and overrides are read."""
